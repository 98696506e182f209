"""kvreuse: an LLM inference engine in which no key or value is computed twice.

What a user imports. Nothing is loaded before it is asked for, so that ``import kvreuse`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvreuse.async_engine import AsyncEngine
    from kvreuse.config import EngineConfig
    from kvreuse.kv.retention import Retention
    from kvreuse.llm import LLM
    from kvreuse.outputs import CompletionOutput, RequestOutput
    from kvreuse.sampling_params import SamplingParams
    from kvreuse.structured_outputs import StructuredOutputs

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "Retention",
    "SamplingParams",
    "StructuredOutputs",
]

_HOMES = {
    "LLM": "kvreuse.llm",
    "AsyncEngine": "kvreuse.async_engine",
    "EngineConfig": "kvreuse.config",
    "SamplingParams": "kvreuse.sampling_params",
    "StructuredOutputs": "kvreuse.structured_outputs",
    "RequestOutput": "kvreuse.outputs",
    "CompletionOutput": "kvreuse.outputs",
    "Retention": "kvreuse.kv.retention",
}


def __getattr__(name: str) -> Any:
    """Load the module that ``name`` lives in (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names that a user imports, loaded or not."""
    return sorted({*globals(), *__all__})
