"""Real models: one that is always there, and others that are tested where they are found."""

from __future__ import annotations

from pathlib import Path

from kvreuse.model.fetch import folders, source

DEFAULT_MODEL = "smollm2-135m"

# Gemma's windows and sentencepieces, Qwen's biases, mixtures of tensor types
OTHER_FILES = (
    "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4.gguf",
    "qwen2.5-coder-1.5b-instruct-q4_k.gguf",
)


def default_model() -> Path:
    """The model's file; fetched into the user's models folder where it is not there yet."""
    return source.pull(DEFAULT_MODEL)


def others_here() -> dict[str, Path]:
    """The other files that lie in a folder of models (``KVREUSE_MODELS``, the cache), by name."""
    found = {name: folders.find(name) for name in OTHER_FILES}
    return {name: path for name, path in found.items() if path is not None}
