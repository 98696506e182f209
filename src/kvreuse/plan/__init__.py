"""The memory planner: how many bytes a model takes, before anything is loaded."""
