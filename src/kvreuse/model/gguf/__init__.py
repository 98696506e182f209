"""GGUF files: read with bounds, checked, understood."""
