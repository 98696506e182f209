"""The GGUF format: its files read with every size checked, and what their keys and names mean."""
