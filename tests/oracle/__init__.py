"""The truth to measure the engine by: a float32 forward pass that shares no code with it."""

from .compare import Comparison, Fidelity, compare
from .oracle import Oracle

__all__ = ["Comparison", "Fidelity", "Oracle", "compare"]
