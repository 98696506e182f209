"""The KV cache: pages, who owns them, how they are found again, and which of them go first."""
