"""Causal attention over pages, of all tokens before or of a window of them.

Parts of 512 tokens, steps of 64 and tiles of 32 all start at absolute positions: what a row sees is
summed in one order, whoever else asks.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kvreuse.ops.reference.floats import Float32, add, exp2, flush, fma, mul, round_bf16, tree16
from kvreuse.ops.reference.pages import Geometry, Ints, Pages, locate, read_rows

PART, STEP, TILE, LANES = 512, 64, 32, 16
LOWEST = np.float32(-1e30)
MASKED = np.float32(-4e30)
RENEW = np.float32(8)


def scale_queries(q: Float32, head_dim: int, scale: float | None = None) -> Float32:
    """Rotated queries times ``log2(e) / sqrt(head_dim)``, rounded to bf16, as float32.

    ``scale`` takes the place of ``1 / sqrt(head_dim)`` where it is given.
    """
    factor = np.log2(np.e) / np.sqrt(head_dim) if scale is None else np.log2(np.e) * scale
    return round_bf16(mul(q, np.float32(factor)))


def attend(
    q: Float32,
    pages: Pages,
    geometry: Geometry,
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
    group = heads // geometry.num_kv_heads
    out = np.zeros(q.shape, dtype=np.float32)
    for seq in np.unique(row_seq):
        rows = np.flatnonzero(row_seq == seq)
        k, v = _sequence(pages, geometry, layer, tables[seq], int(kv_len[seq]))
        last = np.repeat(positions[rows], group)
        first = np.maximum(last - np.int32((window or last.max() + 1) - 1), 0)
        for head in range(geometry.num_kv_heads):
            mine = slice(head * group, (head + 1) * group)
            seen = _rows(q[rows, mine].reshape(-1, dim), k[:, head], v[:, head], first, last)
            out[rows, mine] = seen.reshape(len(rows), group, dim)
    return out.reshape(len(q), heads * dim)


def _sequence(
    pages: Pages, geometry: Geometry, layer: int, table: Ints, length: int
) -> tuple[Float32, Float32]:
    """Keys and values ``[n, kv heads, head_dim]`` of one sequence, zeros up to a whole step."""
    where = locate(table, np.arange(length, dtype=np.int32), geometry.page_size)
    padding = ((0, -length % STEP), (0, 0), (0, 0))
    k, v = read_rows(pages, geometry, layer, where)
    return np.pad(flush(k), padding), np.pad(flush(v), padding)


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


def _rows(q: Float32, k: Float32, v: Float32, first: Ints, last: Ints) -> Float32:
    """Rows ``[R, head_dim]`` over the tokens ``first`` to ``last`` ``[R]`` of one head.

    ``k`` and ``v`` are ``[n, head_dim]``. A row's parts are folded in ascending order, from the one
    that holds its first token.
    """
    maximum, total = np.zeros((2, len(q)), dtype=np.float32)
    values = np.zeros(q.shape, dtype=np.float32)
    for start in range(0, len(k), PART):
        rows = np.flatnonzero((last >= start) & (first < start + PART))
        tokens = slice(start, start + PART)
        begin, end = (x[rows] - np.int32(start) for x in (first, last))
        part = _part(q[rows], k[tokens], v[tokens], begin, end)
        new, more = begin >= 0, begin < 0
        maximum[rows[new]], total[rows[new]] = part.maximum[new], tree16(part.sums[new])
        values[rows[new]] = part.values[new]
        seen = rows[more]
        largest = np.maximum(maximum[seen], part.maximum[more])
        before, now = exp2(maximum[seen] - largest), exp2(part.maximum[more] - largest)
        maximum[seen] = largest
        total[seen] = fma(tree16(part.sums[more]), now, mul(total[seen], before))
        kept = mul(values[seen], before[:, None])
        values[seen] = fma(part.values[more], now[:, None], kept)
    return mul(values, (np.float32(1) / total)[:, None])


def _part(q: Float32, k: Float32, v: Float32, first: Ints, last: Ints) -> _State:
    """Softmax of rows over up to 512 tokens; ``first`` and ``last`` count from their start."""
    state = _State.empty(*q.shape)
    for start in range(0, len(k), STEP):
        tokens = slice(start, start + STEP)
        scores = _scores(q, k[tokens])
        at = np.arange(start, start + STEP)
        hidden = (at < first[:, None]) | (at > last[:, None])
        weights = _weigh(state, np.where(hidden, MASKED, scores))
        _add_values(state, round_bf16(weights), v[tokens])
    return state


def _scores(q: Float32, k: Float32) -> Float32:
    """``q @ k.T``: for each 32 channels a chain of even and a chain of odd ones, and their sum."""
    total = np.zeros((len(q), len(k)), dtype=np.float32)
    for start in range(0, q.shape[1], 32):
        total = add(total, _chains(q[:, start : start + 32], k[:, start : start + 32].T))
    return total


def _chains(a: Float32, b: Float32) -> Float32:
    """``a @ b`` of ``[R, 32]`` and ``[32, n]``: one chain of even products, one of odd."""
    even, odd = (np.zeros((len(a), b.shape[1]), dtype=np.float32) for _ in range(2))
    for i in range(0, a.shape[1], 2):
        even = fma(a[:, i, None], b[i], even)
        odd = fma(a[:, i + 1, None], b[i + 1], odd)
    return add(even, odd)


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


def _add_values(state: _State, weights: Float32, v: Float32) -> None:
    """Add weighted values, one tile of 32 tokens after the other."""
    for start in range(0, len(v), TILE):
        tile = slice(start, start + TILE)
        state.values = add(state.values, _chains(weights[:, tile], v[tile]))
