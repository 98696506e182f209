"""Structured outputs: the tokens that may come next, computed by llguidance."""
