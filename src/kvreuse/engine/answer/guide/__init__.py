"""Structured outputs: which tokens may come next, by llguidance."""
