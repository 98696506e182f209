"""Which planes ``auto`` keeps in int4, which in int8 and which in bf16.

Errors of planes are small and nothing to do with each other, so their squares add up, and what a
model's answers lose grows with the sum, for keys and for values each at a rate that is measured. A
*ladder* starts with int4 everywhere; each rung widens the plane that loses most for its bytes. The
rung to take is found by measuring perplexity.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.planes import PLANE_CODECS
from kvreuse.ops.batch import Float32Array
from kvreuse.shape import KINDS
from kvreuse.study.quality.increase import Increase

Float64Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

BF16, INT8, INT4 = 0, 1, 2
WIDER = {INT4: INT8, INT8: BF16}

MOST_TRIALS = 4
"""Rungs that are measured, at most."""
MOST_APART, TINY = 4.0, 1e-12
"""How many times as much a square of error may cost in keys as in values, or the other way."""
AIM, NEAR_ENOUGH = 0.85, 0.7
"""Shares of the bound: what is aimed at, and from where on nothing narrower is looked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rung:
    """Widths uint8[L, 2, H] of all planes, and the weighted squares of their errors, summed."""

    widths: Bytes
    error: float


@dataclasses.dataclass(frozen=True, slots=True)
class Mixture:
    """Widths uint8[L, 2, H] of all planes, and the increase that was measured with them."""

    widths: Bytes
    increase: Increase


def uniform(shape: tuple[int, int, int], keys: int, values: int) -> Bytes:
    """Widths of ``shape`` [L, 2, H] that are alike for all keys, and for all values."""
    widths = np.empty(shape, dtype=np.uint8)
    widths[:, 0], widths[:, 1] = keys, values
    return widths


def rates(errors: Float32Array, int8: Increase, k8v4: Increase, int4: Increase) -> Float64Array:
    """float64[2]: what a square of error costs in keys and in values, from uniform codecs.

    Only their ratio matters. It is bounded, since small increases are not measured well.
    """
    squares = np.square(errors[1].astype(np.float64)).sum(axis=(0, 2))
    found = np.array([int4.value - k8v4.value, k8v4.value - int8.value]) / np.maximum(squares, TINY)
    return np.asarray(np.maximum(found, max(found.max() / MOST_APART, TINY)))


def ladder(errors: Float32Array, head_dim: int, rates: Float64Array) -> list[Rung]:
    """All rungs, from int4 everywhere to bf16 everywhere.

    ``errors`` is float32[2, L, 2, H], as in a calibration: those of int8 and int4.
    """
    squares = np.square(errors.astype(np.float64)) * rates[:, None]
    squares = np.concatenate([np.zeros_like(squares[:1]), squares])
    row_bytes = np.array(
        [[plane.row_bytes(head_dim, kind) for kind in KINDS] for plane in PLANE_CODECS]
    )
    widths = np.full(squares.shape[1:], INT4, dtype=np.uint8)
    error = float(squares[INT4].sum())
    rungs = [Rung(widths.copy(), error)]
    queue = [_step(squares, row_bytes, INT4, plane) for plane in np.ndindex(widths.shape)]
    heapq.heapify(queue)
    while queue:
        _, width, plane, saved = heapq.heappop(queue)
        widths[plane] = WIDER[width]
        error -= saved
        rungs.append(Rung(widths.copy(), max(error, 0.0)))
        if WIDER[width] in WIDER:
            heapq.heappush(queue, _step(squares, row_bytes, WIDER[width], plane))
    return rungs


_Step = tuple[float, int, tuple[int, ...], float]


def _step(
    squares: Float64Array, row_bytes: npt.NDArray[np.int64], width: int, plane: tuple[int, ...]
) -> _Step:
    """Widening one plane from ``width``: the best for a byte comes first, then by place."""
    saved = float(squares[(width, *plane)] - squares[(WIDER[width], *plane)])
    more = int(row_bytes[WIDER[width], plane[1]] - row_bytes[width, plane[1]])
    return -saved / more, width, plane, saved


def bytes_of(widths: Bytes, head_dim: int) -> int:
    """Bytes of keys and values that a token takes."""
    return sum(
        PLANE_CODECS[width].row_bytes(head_dim, kind)
        for i, kind in enumerate(KINDS)
        for width in widths[:, i].flat
    )


def narrowest(mixtures: Sequence[Mixture], head_dim: int, bound: float) -> Mixture | None:
    """Of those whose increase is at most ``bound``, the one with the fewest bytes, if there is."""
    within = [mixture for mixture in mixtures if mixture.increase.at_most <= bound]
    return min(within, key=lambda mixture: bytes_of(mixture.widths, head_dim), default=None)


def search(
    rungs: Sequence[Rung],
    lowest: Increase,
    bound: float,
    measure: Callable[[Bytes], Increase],
) -> list[Mixture]:
    """Mixtures measured in search of the lowest rung whose increase is at most ``bound``.

    ``lowest`` is the increase at the first rung.
    """
    if lowest.at_most <= bound:
        return [Mixture(rungs[0].widths, lowest)]
    tried = {0: lowest}
    coarse, fits = 0, None
    guess = rungs[0].error * AIM * bound / lowest.at_most
    for _ in range(MOST_TRIALS):
        index = _first_within(rungs, guess)
        if index in tried:
            break
        tried[index] = found = measure(rungs[index].widths)
        if found.at_most > bound:
            slope = _slope(rungs, tried, coarse, index)
            coarse = index
            guess = rungs[index].error * (AIM * bound / found.at_most) ** (1 / slope)
        else:
            fits = index
            if found.at_most >= NEAR_ENOUGH * bound:
                break
        if fits is not None:
            guess = math.sqrt(rungs[coarse].error * rungs[fits].error)
    return [Mixture(rungs[index].widths, found) for index, found in tried.items()]


def _slope(rungs: Sequence[Rung], tried: Mapping[int, Increase], coarse: int, fine: int) -> float:
    """By which power of the error the increase went down between two rungs."""
    went = math.log(tried[coarse].at_most / tried[fine].at_most)
    return min(max(went / math.log(rungs[coarse].error / rungs[fine].error), 0.25), 1.0)


def _first_within(rungs: Sequence[Rung], error: float) -> int:
    """The lowest rung whose error is at most ``error``; the last one if none is."""
    return next((i for i, rung in enumerate(rungs) if rung.error <= error), len(rungs) - 1)
