"""The KV cache: pages, their owners, the prefix index that finds them, and their eviction."""
