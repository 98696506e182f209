"""The tokens that may be drawn, their weights, and the draw.

After a step of the kernels nothing of NumPy is left in the caches: the first call of any of its
functions costs ten times what it does in a loop. So a draw makes few calls on the whole vocabulary,
and what is heavy, which is nearly always a few dozen tokens, goes through plain Python. Weights are
float32, as logits are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.api.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer[Any]]

HEAVY = math.exp(-8)
"""Tokens that weigh at least this much of the heaviest come first when one is drawn."""

_LIGHTER = math.exp(-12)  # where a nucleus goes beyond the heavy ones, it seldom goes beyond this
_IN_PYTHON = 128  # heavy tokens that are cheaper to handle one by one
_FEW = 1024  # weights that are sorted, or summed one by one, outright
_GROUPS, _MIN_GROUPS = 8, 512  # groups for each of the k largest that are looked for, and at least
_LARGE = 100_000  # a vocabulary in which it pays to look at what is near the largest logit first
_NEAR, _SPARSE = 18, 8  # that is what weighs exp(-this) or more, if it is one token in so many
_LOWEST = -3e38  # below any logit but -inf, which bans a token


def choose(logits: Floats, largest: float, params: SamplingParams, uniform: float) -> int:
    """The token that ``uniform``, in [0, 1), falls on: the inverse of the cumulated weights.

    A weight is ``exp((logit - largest) / temperature)``: a probability but for its scale. They are
    cumulated over the heavy tokens first (``HEAVY``), ids ascending, then over the others.
    ``largest`` is the largest of float32[n] ``logits``, a finite number.
    """
    ids = limited(logits, largest, params)
    if ids is None and len(logits) >= _LARGE:
        drawn = _draw_near(logits, largest, params, uniform)
        if drawn is not None:
            return drawn
    weights = weigh(logits if ids is None else logits[ids], largest, params.temperature)
    drawn = _draw_heavy(weights, params.top_p, uniform)
    if drawn is None:
        drawn = _draw_among_all(weights, params.top_p, uniform)
    return drawn if ids is None else int(ids[drawn])


def limited(logits: Floats, largest: float, params: SamplingParams) -> Ids | None:
    """Ids, ascending, of what ``min_p`` and ``top_k`` leave; None for all.

    Both keep a most probable part, so that their order does not matter; ``top_p`` counts what they
    leave as the whole, as vLLM does.
    """
    least = None
    if params.min_p > 0:  # the logit of a token that weighs min_p
        distance = -math.log(params.min_p) * params.temperature
        least = np.float32(max(largest - distance, _LOWEST))
    if 0 < params.top_k < len(logits):
        ids = largest_k(logits, params.top_k)
        return ids if least is None else ids[logits[ids] >= least]
    if least is None:
        return None
    likely: Ids = (logits >= least).nonzero()[0]
    return likely


def weigh(logits: Floats, largest: float, temperature: float) -> Floats:
    """The weights of ``logits``, in an array of their own."""
    weights: Floats = logits - np.float32(largest)
    if temperature != 1:
        weights *= np.float32(max(1 / temperature, 1e-30))  # above 0: -inf stays -inf
    return np.exp(weights, out=weights)


def _draw_near(
    logits: Floats, largest: float, params: SamplingParams, uniform: float
) -> int | None:
    """The token drawn, from those near the largest logit and a bound on what all others weigh.

    None where these are many, or do not decide it.
    """
    near = logits >= np.float32(max(largest - _NEAR * params.temperature, _LOWEST))
    if np.count_nonzero(near) * _SPARSE > len(logits):
        return None
    ids = near.nonzero()[0]
    rest = (len(logits) - len(ids)) * math.exp(-_NEAR) * 1.01  # rounding included
    weights = weigh(logits[ids], largest, params.temperature)
    drawn = _draw_heavy(weights, params.top_p, uniform, rest)
    return None if drawn is None else int(ids[drawn])


def _draw_heavy(weights: Floats, top_p: float, uniform: float, rest: float = 0.0) -> int | None:
    """The index that ``uniform`` falls on, if that is one of a few heavy tokens.

    Beside ``weights`` there may be others, none of them heavy, that add up to at most ``rest``.
    None where it is not, or depends on them, or the nucleus goes beyond the heavy tokens.
    """
    heavy = (weights >= HEAVY).nonzero()[0]
    if len(heavy) > _IN_PYTHON:
        return None
    values: list[float] = weights[heavy].tolist()
    whole = float(np.add.reduce(weights))
    least, ties = 0.0, 0
    if top_p < 1:
        ordered, reached, count = sorted(values, reverse=True), 0.0, 0
        while reached < top_p * whole and count < len(ordered):
            least = ordered[count]
            reached += least
            count += 1
        if reached < top_p * (whole + rest):
            return None
        whole, rest, ties = reached, 0.0, ordered[:count].count(least)
    running, last = 0.0, None
    for place, value in enumerate(values):
        if value <= least:
            if value < least or ties == 0:
                continue
            ties -= 1
        running += value
        if running > uniform * whole:
            return int(heavy[place]) if running > uniform * (whole + rest) else None
        last = place
    # A nucleus adds up to its whole, but for rounding; else the draw is beyond the heavy tokens.
    return None if top_p == 1 or last is None else int(heavy[last])


def _draw_among_all(weights: Floats, top_p: float, uniform: float) -> int:
    """The index that ``uniform`` falls on; of the nucleus only, where there is one."""
    kept = nucleus(weights, top_p) if top_p < 1 else None
    if kept is not None:
        weights = weights[kept]
    heavy = weights >= HEAVY
    first, rest = heavy.nonzero()[0], (~heavy).nonzero()[0]
    masses = [float(weights[part].sum(dtype=np.float64)) for part in (first, rest)]
    target = uniform * sum(masses)
    part = first if target < masses[0] or masses[1] == 0 else rest
    drawn = int(part[draw(weights[part], target if part is first else target - masses[0])])
    return drawn if kept is None else int(kept[drawn])


def nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights whose sum reaches ``top_p`` of the whole.

    Of equal weights the lower index comes first. The smallest weight kept is closed in on from
    both sides, so that few weights are ever sorted: the mass above a pivot says on which side.
    """
    missing = top_p * float(weights.sum(dtype=np.float64))
    between, above = weights, 0
    for least in (HEAVY, _LIGHTER):
        larger = weights[weights >= least]
        if float(larger.sum(dtype=np.float64)) >= missing:
            between = larger
            break
    while len(between) > _FEW:
        upper = between >= between.mean()
        larger = between[upper]
        mass = float(larger.sum(dtype=np.float64))
        if len(larger) == len(between):  # all alike, or the mean rounded past them
            break
        if mass >= missing:
            between = larger
        else:
            between = between[~upper]
            missing -= mass
            above += len(larger)
    between = np.sort(between)[::-1]
    reached = between.cumsum(dtype=np.float64)
    last = min(int(reached.searchsorted(missing)), len(between) - 1)
    kept: Ids = (weights >= between[last]).nonzero()[0]
    ties = len(kept) - (above + last + 1)
    if ties > 0:
        equal = (weights[kept] == between[last]).nonzero()[0]
        kept = np.delete(kept, equal[-ties:])
    return kept


def largest_k(values: Floats, k: int) -> Ids:
    """Ids, ascending, of the ``k`` largest of ``values`` and of those equal to the last of them.

    1 <= k <= len(values). Split into more than ``k`` groups, the k-th largest of the groups' maxima
    is a lower bound that leaves few to look at.
    """
    groups = max(_GROUPS * k, _MIN_GROUPS)
    rows = len(values) // groups
    if rows < 2:
        every: Ids = (values >= np.partition(values, -k)[-k]).nonzero()[0]
        return every
    maxima = values[: rows * groups].reshape(rows, groups).max(axis=0)
    maxima.partition(groups - k)
    ids = (values >= maxima[groups - k]).nonzero()[0]
    few = values[ids]
    kept: Ids = ids[few >= np.partition(few, -k)[-k]]
    return kept


def draw(weights: Floats, target: float) -> int:
    """The first index at which the running sum exceeds ``target``, a part of the whole.

    The sum of many weights runs over rows of an almost square table first, then inside the row: 10
    times faster than one running sum, and in an order that depends on the length alone.
    """
    start, before, stop = 0, 0.0, len(weights)
    if stop > _FEW:
        width = math.isqrt(stop)
        rows = stop // width
        edges = weights[: rows * width].reshape(rows, width).sum(axis=1).cumsum(dtype=np.float64)
        row = int(edges.searchsorted(target, side="right"))
        start, stop = row * width, (row + 1) * width if row < rows else stop
        before = edges.item(row - 1) if row else 0.0
    running = weights[start:stop].cumsum(dtype=np.float64)
    running += before
    place = int(running.searchsorted(target, side="right"))
    if place < len(running):
        return start + place
    # Rounding put the target at the end: the last that may be drawn up to there.
    return int(weights[:stop].nonzero()[0][-1])
