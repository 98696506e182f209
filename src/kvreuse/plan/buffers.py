"""Bytes beside weights and pages: the buffers of the forward pass, and the process itself.

What ``model/decoder.py`` and ``native/operations.cpp`` take at the start, for the largest step.
"""

from __future__ import annotations

import dataclasses

from kvreuse.plan.geometry import Widths

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


def buffer_bytes(widths: Widths, step: StepShape) -> int:
    """All buffers of the forward pass, the tables of the rotary embedding included."""
    query = widths.heads * widths.head_dim
    inputs = max(widths.hidden, query, widths.intermediate)
    rows = step.rows
    tensors = (
        rows * widths.hidden  # the residual stream
        + rows * (query + 2 * widths.kv_heads * widths.head_dim)
        + rows * query * 2  # queries, and what attention gives
        + rows * 2 * widths.intermediate
        + (rows * widths.hidden if widths.post_norms else 0)
        + step.sequences * (widths.hidden + widths.vocab)  # the rows that sample
    ) * FLOAT
    # int8 activations; of each group of 32 a scale, a sum, and their product
    activations = rows * inputs + rows * (inputs // GROUP) * 3 * FLOAT
    # Rows that decode are split into parts only where there are fewer of them than threads want.
    parts = min(step.sequences, 2 * step.threads) * -(-step.positions // PART_TOKENS)
    partials = parts * widths.heads * (widths.head_dim + 2) * FLOAT
    tables = widths.rotary_tables * step.positions * widths.head_dim * FLOAT
    return tensors + activations + partials + tables + step.threads * _scratch(widths, inputs)


def _scratch(widths: Widths, inputs: int) -> int:
    """What each thread works on."""
    rows = ITEM_TOKENS * (widths.heads // widths.kv_heads)
    attend = (rows * (3 * widths.head_dim + 21) + 1024 + widths.head_dim * 16) * FLOAT
    linear = inputs // GROUP * 640 + 4096
    return max(attend, linear) + inputs * FLOAT


def process_bytes(vocab: int) -> int:
    """The process before it has loaded weights: interpreter, libraries, tokenizer."""
    return PROCESS_BYTES + vocab * TOKEN_BYTES
