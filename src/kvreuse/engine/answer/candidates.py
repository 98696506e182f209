"""Random sampling: the candidate tokens, their weights, and the draw.

A step of the kernels evicts NumPy from the CPU's caches: the first call of any of its functions
costs ten times what it costs in a loop. So a draw makes few calls on the whole vocabulary, and the
heavy tokens, nearly always a few dozen, are handled in plain Python. Weights are float32, as logits
are.
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
"""Heavy tokens: their weight is at least this (the largest is 1); a draw cumulates them first."""

_LIGHTER = math.exp(-12)  # a nucleus seldom has tokens of less weight
_IN_PYTHON = 128  # up to so many heavy tokens are handled in plain Python
_FEW = 1024  # up to so many weights are sorted, or summed one by one
_GROUPS, _MIN_GROUPS = 8, 512  # groups to find the k largest: 8 k of them, at least 512
_LARGE = 100_000  # from this size of vocabulary on, tokens near the largest logit are tried first
_NEAR, _SPARSE = 18, 8  # near: weight >= exp(-18); tried if at most one token in 8 is near
_LOWEST = -3e38  # below every logit except -inf, which bans a token


def choose(logits: Floats, largest: float, params: SamplingParams, uniform: float) -> int:
    """The token that ``uniform``, in [0, 1), falls on: the inverse of the cumulated weights.

    A weight is ``exp((logit - largest) / temperature)``, a probability up to a factor. Weights are
    cumulated over the heavy tokens (``HEAVY``) first, ids ascending, then over the others.
    ``largest`` is the largest of float32[n] ``logits`` and finite.
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
    """Ids, ascending, of the tokens that ``min_p`` and ``top_k`` keep; None for all.

    Both keep the most probable tokens, so their order does not matter. ``top_p`` is a share of what
    they keep, as in vLLM.
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
    """The weights of ``logits``, in a new array."""
    weights: Floats = logits - np.float32(largest)
    if temperature != 1:
        weights *= np.float32(max(1 / temperature, 1e-30))  # above 0: -inf stays -inf
    return np.exp(weights, out=weights)


def _draw_near(
    logits: Floats, largest: float, params: SamplingParams, uniform: float
) -> int | None:
    """The token drawn, from the tokens near the largest logit and a bound on all other weights.

    None if too many tokens are near, or if the draw depends on the others.
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
    """The index that ``uniform`` falls on, if it is one of a few heavy tokens, else None.

    Beside ``weights`` there may be further ones, none of them heavy, that sum to at most ``rest``.
    None, too, if the draw depends on them, or if the nucleus has tokens that are not heavy.
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
    # Past the end: by rounding if there is a nucleus, else the draw falls on a token not heavy.
    return None if top_p == 1 or last is None else int(heavy[last])


def _draw_among_all(weights: Floats, top_p: float, uniform: float) -> int:
    """The index that ``uniform`` falls on, within the nucleus if ``top_p`` < 1."""
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

    Of equal weights the lower index comes first. The smallest weight kept is found by bisection at
    the mean of the weights left, by the sum above it, so that few weights are sorted.
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
        if len(larger) == len(between):  # all equal, or the mean was rounded below them
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

    1 <= k <= len(values). ``values`` are split into more than ``k`` groups: the k-th largest
    maximum of a group is a lower bound, and few values reach it.
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
    """The first index at which the running sum exceeds ``target``, at most the whole sum.

    Many weights are summed over the rows of an almost square table first, then inside one row: 10
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
    # By rounding the target is past the end: take the last weight that is not 0.
    return int(weights[:stop].nonzero()[0][-1])
