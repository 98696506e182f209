"""Turned keys, as they lie in their page, against the twin: both kinds of pairs, odd widths.

The tolerance is none.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvreuse.ops import reference
from kvreuse.ops._native import Attention, Batch, Kernels, KVView, Rotary, Tensor, Workspace
from kvreuse.shape import RopePairs, RopeSpec

TOKENS, POSITIONS, PAGE = 21, 60, 32


@pytest.mark.parametrize("pairs", ["interleaved", "half"])
@pytest.mark.parametrize(
    ("head_dim", "dims"),
    [(32, 32), (64, 64), (64, 50), (80, 80), (80, 2), (96, 70), (128, 64), (256, 256)],
)
def test_keys_are_turned(isa: str, pairs: RopePairs, head_dim: int, dims: int) -> None:
    spec = RopeSpec(pairs=pairs, base=1e4, dims=dims)
    tables = reference.rope_tables(spec, POSITIONS)
    qkv, out = Tensor(TOKENS, 3 * head_dim), Tensor(TOKENS, head_dim)
    rows = np.random.default_rng(dims).standard_normal((TOKENS, 3 * head_dim)).astype(np.float32)
    rows[3] *= 1e-30
    qkv.numpy()[:] = rows
    positions = np.arange(POSITIONS - TOKENS, POSITIONS, dtype=np.int32)
    pool = np.zeros((2, 2 * PAGE * head_dim * 2), dtype=np.uint8)
    view = KVView(pool, PAGE, 1, 1, 1, head_dim)
    batch = Batch(TOKENS, 1, 1, 2, PAGE, 2, vocabulary=1, positions=POSITIONS)
    zeros = np.zeros(TOKENS, dtype=np.int32)
    pages, length = np.array([[1, 0]], dtype=np.int32), np.array([POSITIONS], dtype=np.int32)
    batch.load(zeros, positions, zeros, pages, length, zeros[:0], 1)
    space = Workspace(1, TOKENS, head_dim, head_dim, 1, 1, head_dim, 4)
    attention = Attention(view, Rotary(*tables, pairs == "interleaved"), 0, 1.0)
    Kernels(isa, 1).attend(space, batch, attention, qkv, out)

    keys = rows[:, None, head_dim : 2 * head_dim]
    expected = reference.to_bf16(reference.rope(keys, positions, tables, spec))[:, 0]
    # [page][half of 16 tokens][pair of channels][token][channel of the pair] -> [position][channel]
    tiles = pool[:, : PAGE * head_dim * 2].view(np.uint16).reshape(2, 2, head_dim // 2, 16, 2)
    stored = tiles.transpose(0, 1, 3, 2, 4).reshape(2, PAGE, head_dim)[[1, 0]]
    np.testing.assert_array_equal(stored.reshape(2 * PAGE, head_dim)[positions], expected)
