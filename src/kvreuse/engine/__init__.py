"""The engine: requests, steps, and the order in which they are served."""
