"""How keys and values become the bytes of a page."""
