"""Bytes beside weights and pages: the buffers of the forward pass, and the process itself."""

from __future__ import annotations

import dataclasses

from kvreuse.model.decoder import decoder_bytes
from kvreuse.ops.backend import Backend, StepLimits
from kvreuse.shape import ModelShape

PROCESS_BYTES = 50 << 20
"""The interpreter with NumPy, the tokenizers and the kernels; measured on Linux."""
TOKEN_BYTES = 560
"""A token of the vocabulary in the tokenizer, its texts and merges; measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step: batched tokens, sequences and their positions; and what computes it."""

    backend: Backend
    batched_tokens: int = 512
    sequences: int = 64
    positions: int = 8192
    page_size: int = 32

    @property
    def limits(self) -> StepLimits:
        """The limits of an engine for such steps: every sequence has at least one row."""
        rows = max(self.batched_tokens, self.sequences)
        return StepLimits(rows, self.sequences, self.sequences, self.positions)


def buffer_bytes(shape: ModelShape, step: StepShape) -> int:
    """All buffers of the forward pass, the tables of the rotary embedding included."""
    return decoder_bytes(shape, step.page_size, step.limits, step.backend)


def process_bytes(vocab: int) -> int:
    """The process before it has loaded weights: interpreter, libraries, tokenizer."""
    return PROCESS_BYTES + vocab * TOKEN_BYTES
