"""kvreuse: an LLM inference engine in which no key or value is computed twice.

What a user imports. Nothing is loaded before it is asked for, so that ``import kvreuse`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvreuse.api.ask import Ask
    from kvreuse.api.outputs import CompletionOutput, RequestOutput
    from kvreuse.api.retention import Retention
    from kvreuse.api.sampling_params import SamplingParams
    from kvreuse.api.structured_outputs import StructuredOutputs
    from kvreuse.config import EngineConfig
    from kvreuse.engine.threaded import AsyncEngine
    from kvreuse.llm import LLM

__all__ = [
    "LLM",
    "Ask",
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
    "Ask": "kvreuse.api.ask",
    "AsyncEngine": "kvreuse.engine.threaded",
    "EngineConfig": "kvreuse.config",
    "SamplingParams": "kvreuse.api.sampling_params",
    "StructuredOutputs": "kvreuse.api.structured_outputs",
    "RequestOutput": "kvreuse.api.outputs",
    "CompletionOutput": "kvreuse.api.outputs",
    "Retention": "kvreuse.api.retention",
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
