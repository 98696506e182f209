"""Scores and weighted values of one step of 64 tokens, in the arithmetic of a plane's codec.

A query, or the weights of a step, become integers of 15 bits beside integer keys or values: sums of
products are exact, in any order, and scales come in afterwards.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, Float64, add, flush, fma, mul, round_bf16, tree16
from kvreuse.kv.codec.planes import BF16, INT4, INT8, PlaneCodec
from kvreuse.kv.codec.rows import GROUP, LARGEST, IntegerRows
from kvreuse.ops.reference.pages import Pages
from kvreuse.shape import Kind

TILE, LANES = 32, 16
MOST = 16256
"""127 * 128: the largest integer that a query or a weight becomes."""
SHARE = np.float32(1 / MOST)


class Keys(Protocol):
    """The keys of one head."""

    def scores(self, q: Float32, tokens: slice) -> Float32:
        """Products of queries ``[R, head_dim]`` with the keys of some tokens: ``[R, tokens]``."""


class Values(Protocol):
    """The values of one head."""

    def add_to(self, seen: Float32, weights: Float32, tokens: slice) -> Float32:
        """``seen`` ``[R, head_dim]`` and a step's values times ``weights`` ``[R, 64]``."""


def keys_of(codec: PlaneCodec, records: Pages, head_dim: int, padding: int) -> Keys:
    """Keys from records uint8 ``[T, row_bytes]``, and ``padding`` tokens that are to be masked."""
    if codec == BF16:
        return Bf16Keys(_bf16_rows(records, head_dim, "key", padding))
    return IntegerKeys(_integer_rows(codec, records, head_dim, "key", padding))


def values_of(codec: PlaneCodec, records: Pages, head_dim: int, padding: int) -> Values:
    """Values from records uint8 ``[T, row_bytes]``, and ``padding`` tokens of weight 0."""
    if codec == BF16:
        return Bf16Values(_bf16_rows(records, head_dim, "value", padding))
    return IntegerValues(_integer_rows(codec, records, head_dim, "value", padding))


def _bf16_rows(records: Pages, head_dim: int, kind: Kind, padding: int) -> Float32:
    return np.pad(flush(BF16.unpack(records, head_dim, kind)), ((0, padding), (0, 0)))


def _integer_rows(
    codec: PlaneCodec, records: Pages, head_dim: int, kind: Kind, padding: int
) -> IntegerRows:
    integers = INT8.integers if codec == INT8 else INT4.integers
    q, scale, minimum = integers(records, head_dim, kind)
    rows = ((0, padding), (0, 0))
    padded = None if minimum is None else np.pad(minimum, rows)
    return IntegerRows(np.pad(q, rows), np.pad(scale, rows), padded)


class Bf16Keys(NamedTuple):
    """Keys ``[T, head_dim]``, rounded; queries are, too."""

    rows: Float32

    def scores(self, q: Float32, tokens: slice) -> Float32:
        """For each 32 channels a chain of even and a chain of odd ones, and their sum."""
        q, k = round_bf16(q), self.rows[tokens]
        total = np.zeros((len(q), len(k)), dtype=np.float32)
        for start in range(0, q.shape[1], 32):
            total = add(total, _chains(q[:, start : start + 32], k[:, start : start + 32].T))
        return total


class Bf16Values(NamedTuple):
    """Values ``[T, head_dim]``, rounded; weights are, too."""

    rows: Float32

    def add_to(self, seen: Float32, weights: Float32, tokens: slice) -> Float32:
        """One tile of 32 tokens after the other."""
        weights, v = round_bf16(weights), self.rows[tokens]
        for start in range(0, len(v), TILE):
            tile = slice(start, start + TILE)
            seen = add(seen, _chains(weights[:, tile], v[tile]))
        return seen


def _chains(a: Float32, b: Float32) -> Float32:
    """``a @ b`` of ``[R, 32]`` and ``[32, n]``: one chain of even products, one of odd."""
    even, odd = (np.zeros((len(a), b.shape[1]), dtype=np.float32) for _ in range(2))
    for i in range(0, a.shape[1], 2):
        even = fma(a[:, i, None], b[i], even)
        odd = fma(a[:, i + 1, None], b[i + 1], odd)
    return add(even, odd)


class IntegerKeys(NamedTuple):
    """Keys as integers with scales; with minima they are int4."""

    rows: IntegerRows

    def scores(self, q: Float32, tokens: slice) -> Float32:
        """Int8: one exact sum. Int4: one for each group of 64 channels, in ascending order."""
        levels, step = as_integers(q)
        total: Float32 | None = None
        for group, channels in enumerate(_groups(self.rows)):
            k, scale = self.rows.q[tokens, channels], self.rows.scale[tokens, group]
            dot = _exact(levels[:, channels], k.T)
            if self.rows.minimum is None:
                term = mul(dot, scale)
            else:
                sums = levels[:, channels].sum(axis=1, keepdims=True).astype(np.float32)
                term = fma(dot, scale, mul(sums, self.rows.minimum[tokens, group]))
            total = term if total is None else add(total, term)
        assert total is not None
        return mul(total, step)


class IntegerValues(NamedTuple):
    """Values as integers with scales; with minima they are int4."""

    rows: IntegerRows

    def add_to(self, seen: Float32, weights: Float32, tokens: slice) -> Float32:
        """Weights take the scales of their tokens in, then become integers; a step at once."""
        seen = seen.copy()
        for group, channels in enumerate(_groups(self.rows)):
            scaled = _weighted(weights, self.rows.scale[tokens, group])
            levels, step = as_integers(scaled)
            before = seen[:, channels]
            if self.rows.minimum is not None:
                shift = _weighted(weights, self.rows.minimum[tokens, group])
                a, b, c, d = np.split(shift, shift.shape[1] // LANES, axis=1)
                before = add(before, tree16(add(add(a, b), add(c, d)))[:, None])
            seen[:, channels] = fma(_exact(levels, self.rows.q[tokens, channels]), step, before)
        return seen


def as_integers(x: Float32) -> tuple[Float64, Float32]:
    """Rows ``[R, n]`` as whole numbers up to 16256 in magnitude, and the step ``[R, 1]``.

    Where a row has something that is not finite, that is 0 and the step is infinite.
    """
    finite = np.abs(x) < LARGEST
    numbers = np.where(finite, x, np.float32(0))
    largest = np.abs(numbers).max(axis=1, keepdims=True)
    largest[~finite.all(axis=1)] = np.inf
    step = mul(largest, SHARE)
    usable = (step > 0) & (step < np.inf)
    inverse = np.where(usable, flush(np.float32(1) / np.where(usable, step, 1)), np.float32(0))
    levels = np.clip(np.rint(mul(numbers, inverse)), -MOST, MOST)
    return levels.astype(np.float64), step


def _weighted(weights: Float32, numbers: Float32) -> Float32:
    """Weights ``[R, T]`` times a number of each token ``[T]``; nothing where the weight is 0."""
    return np.where(weights > 0, mul(weights, numbers), np.float32(0))


def _groups(rows: IntegerRows) -> list[slice]:
    """The channels of each scale."""
    dim = rows.q.shape[1]
    width = dim if rows.minimum is None else GROUP
    return [slice(start, min(start + width, dim)) for start in range(0, dim, width)]


def _exact(a: Float64, b: npt.NDArray[np.int32]) -> Float32:
    """``a @ b`` of whole numbers, rounded once: sums stay far below 2^53."""
    return (a @ b.astype(np.float64)).astype(np.float32)
