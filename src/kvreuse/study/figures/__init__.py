"""Figures: what the cache does, each measured on a model and drawn from what was measured."""
