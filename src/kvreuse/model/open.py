"""Opens a model's files in whatever format they are."""

from __future__ import annotations

from pathlib import Path

from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.gguf.checkpoint import GGUFCheckpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at ``path``, which is a GGUF file: so far no other format is supported.

    Raises ``ModelFileError`` where it cannot be read or is damaged.
    """
    return GGUFCheckpoint(path)
