"""The memory planner: bytes from a header or a config.json, without weights, and the inverse."""
