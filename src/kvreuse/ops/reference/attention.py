"""Causal attention over pages, of all tokens before or of a window of them.

Parts of 512 tokens, steps of 64 and tiles of 32 all start at absolute positions: what a row sees is
summed in one order, whoever else asks.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kvreuse.kv.codec.floats import Float32, add, exp2, fma, mul, tree16
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.reference.pages import Ints, Pages, locate, read_records
from kvreuse.ops.reference.products import Keys, Values, keys_of, values_of
from kvreuse.shape import KINDS

PART, STEP, LANES = 512, 64, 16
LOWEST = np.float32(-1e30)
MASKED = np.float32(-4e30)
RENEW = np.float32(8)


def scale_queries(q: Float32, head_dim: int, scale: float | None = None) -> Float32:
    """Rotated queries times ``log2(e) / sqrt(head_dim)``.

    ``scale`` takes the place of ``1 / sqrt(head_dim)`` where it is given.
    """
    factor = np.log2(np.e) / np.sqrt(head_dim) if scale is None else np.log2(np.e) * scale
    return mul(q, np.float32(factor))


def attend(
    q: Float32,
    pages: Pages,
    layout: KVLayout,
    *,
    layer: int,
    tables: Ints,
    kv_len: Ints,
    positions: Ints,
    row_seq: Ints,
    window: int | None = None,
) -> Float32:
    """What each query row sees, up to its own position: float32 ``[T, heads * head_dim]``.

    With a ``window`` of W, position p sees the W positions from p - W + 1 to p.

    ``q`` is float32 ``[T, heads, head_dim]`` from :func:`scale_queries`; ``pages`` uint8
    ``[num_pages, page_bytes]``; ``tables`` int32 ``[B, P]``, ``kv_len`` int32 ``[B]``,
    ``positions`` and ``row_seq`` int32 ``[T]``. Tokens from ``kv_len`` on may hold anything.
    """
    heads, dim = q.shape[1:]
    kv_heads = layout.layers[layer].kv_heads
    group = heads // kv_heads
    out = np.zeros(q.shape, dtype=np.float32)
    for seq in np.unique(row_seq):
        rows = np.flatnonzero(row_seq == seq)
        last = np.repeat(positions[rows], group)
        first = np.maximum(last - np.int32((window or last.max() + 1) - 1), 0)
        for head in range(kv_heads):
            mine = slice(head * group, (head + 1) * group)
            k, v = _sequence(pages, layout, layer, head, tables[seq], int(kv_len[seq]))
            seen = _rows(q[rows, mine].reshape(-1, dim), k, v, first, last)
            out[rows, mine] = seen.reshape(len(rows), group, dim)
    return out.reshape(len(q), heads * dim)


def _sequence(
    pages: Pages, layout: KVLayout, layer: int, head: int, table: Ints, length: int
) -> tuple[Keys, Values]:
    """Keys and values of one head of one sequence, padded to a whole step."""
    where = locate(table, np.arange(length, dtype=np.int32), layout.page_size)
    shape = layout.layers[layer]
    padding = -length % STEP
    keys, values = (read_records(pages, layout, layer, kind, head, where) for kind in KINDS)
    return (
        keys_of(layout.plane_codec(layer, "key", head), keys, shape.key_dim, padding),
        values_of(layout.plane_codec(layer, "value", head), values, shape.value_dim, padding),
    )


@dataclasses.dataclass(slots=True)
class _State:
    """Running softmax of rows: maximum ``[R]``, sums ``[R, lanes]``, values ``[R, head_dim]``."""

    maximum: Float32
    sums: Float32
    values: Float32

    @classmethod
    def empty(cls, rows: int, dim: int) -> _State:
        return cls(
            np.full(rows, LOWEST),
            np.zeros((rows, LANES), dtype=np.float32),
            np.zeros((rows, dim), dtype=np.float32),
        )


def _rows(q: Float32, k: Keys, v: Values, first: Ints, last: Ints) -> Float32:
    """Rows ``[R, head_dim]`` over the tokens ``first`` to ``last`` ``[R]`` of one head.

    A row's parts are folded in ascending order, from the one that holds its first token.
    """
    maximum, total = np.zeros((2, len(q)), dtype=np.float32)
    values = np.zeros(q.shape, dtype=np.float32)
    for start in range(0, int(last.max()) + 1, PART):
        rows = np.flatnonzero((last >= start) & (first < start + PART))
        if not len(rows):
            continue
        part = _part(q[rows], k, v, start, first[rows], last[rows])
        new, more = first[rows] >= start, first[rows] < start
        maximum[rows[new]], total[rows[new]] = part.maximum[new], tree16(part.sums[new])
        values[rows[new]] = part.values[new]
        seen = rows[more]
        largest = np.maximum(maximum[seen], part.maximum[more])
        before, now = exp2(maximum[seen] - largest), exp2(part.maximum[more] - largest)
        maximum[seen] = largest
        total[seen] = fma(tree16(part.sums[more]), now, mul(total[seen], before))
        kept = mul(values[seen], before[:, None])
        values[seen] = fma(part.values[more], now[:, None], kept)
    with np.errstate(divide="ignore"):  # scores below any maximum leave no weight at all
        return mul(values, (np.float32(1) / total)[:, None])


def _part(q: Float32, k: Keys, v: Values, begin: int, first: Ints, last: Ints) -> _State:
    """Softmax of rows over the part of 512 tokens from ``begin``."""
    state = _State.empty(*q.shape)
    for start in range(begin, min(begin + PART, int(last.max()) + 1), STEP):
        tokens = slice(start, start + STEP)
        at = np.arange(start, start + STEP)
        hidden = (at < first[:, None]) | (at > last[:, None])
        weights = _weigh(state, np.where(hidden, MASKED, k.scores(q, tokens)))
        state.values = v.add_to(state.values, weights, tokens)
    return state


def _weigh(state: _State, scores: Float32) -> Float32:
    """Weights ``2 ** (score - maximum)`` of one step ``[R, 64]``.

    The maximum is renewed, and the sums are rescaled, only where a score exceeds it by over 8.
    """
    largest = scores.max(axis=1)
    renew = largest > state.maximum + RENEW
    scale = exp2(state.maximum[renew] - largest[renew])[:, None]
    state.maximum[renew] = largest[renew]
    state.sums[renew] = mul(state.sums[renew], scale)
    state.values[renew] = mul(state.values[renew], scale)
    weights = exp2(add(scores, -state.maximum[:, None]))
    a, b, c, d = np.split(weights, 4, axis=1)
    state.sums = add(state.sums, add(add(a, b), add(c, d)))
    return weights
