"""Simulation: what a cache of a given size would reuse of a trace, without computing anything."""
