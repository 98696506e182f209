"""Bytes beside weights and pages: the buffers of the forward pass, and the process itself.

What ``model/decoder.py`` and ``native/operations.cpp`` take at the start, for the largest step.
"""

from __future__ import annotations

import dataclasses

from kvreuse.shape import ModelShape

FLOAT = 4
GROUP = 32
"""Activations that share a scale."""
PART_TOKENS = 512
"""Tokens whose attention results are kept apart before they are merged."""
ITEM_TOKENS = 16
"""Tokens of a prompt that attend together."""

PROCESS_BYTES = 50 << 20
"""The interpreter with NumPy, the tokenizers and the kernels; measured on Linux."""
TOKEN_BYTES = 560
"""A token of the vocabulary in the tokenizer, its texts and merges; measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step: batched tokens, sequences and their positions; threads of the kernels."""

    batched_tokens: int = 512
    sequences: int = 64
    positions: int = 8192
    threads: int = 1

    @property
    def rows(self) -> int:
        """Rows of a step: every sequence has at least one."""
        return max(self.batched_tokens, self.sequences)


def buffer_bytes(shape: ModelShape, step: StepShape) -> int:
    """All buffers of the forward pass, the tables of the rotary embedding included."""
    query = shape.q_size
    inputs = max(shape.hidden_size, query, shape.intermediate_size)
    rows = step.rows
    tensors = (
        rows * shape.hidden_size  # the residual stream
        + rows * (query + 2 * shape.kv_size)
        + rows * query * 2  # queries, and what attention gives
        + rows * 2 * shape.intermediate_size
        + (rows * shape.hidden_size if shape.post_norms else 0)
        + step.sequences * (shape.hidden_size + shape.vocab_size)  # the rows that sample
    ) * FLOAT
    # int8 activations; of each group of 32 a scale, a sum, and their product
    activations = rows * inputs + rows * (inputs // GROUP) * 3 * FLOAT
    # Rows that decode are split into parts only where there are fewer of them than threads want.
    parts = min(step.sequences, 2 * step.threads) * -(-step.positions // PART_TOKENS)
    partials = parts * shape.num_heads * (shape.head_dim + 2) * FLOAT
    tables = (2 if shape.local_rope else 1) * step.positions * shape.head_dim * FLOAT
    return tensors + activations + partials + tables + step.threads * _scratch(shape, inputs)


def _scratch(shape: ModelShape, inputs: int) -> int:
    """What each thread works on."""
    rows = ITEM_TOKENS * shape.group_size
    attend = (rows * (3 * shape.head_dim + 21) + 1024 + shape.head_dim * 16) * FLOAT
    linear = inputs // GROUP * 640 + 4096
    return max(attend, linear) + inputs * FLOAT


def process_bytes(vocab: int) -> int:
    """The process before it has loaded weights: interpreter, libraries, tokenizer."""
    return PROCESS_BYTES + vocab * TOKEN_BYTES
