"""KV cache codecs: how keys and values are encoded as the bytes of a page."""
