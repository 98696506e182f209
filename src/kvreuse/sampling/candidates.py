"""The tokens that may be drawn, their weights, and the draw.

A vocabulary is walked as seldom as can be. Most of it weighs next to nothing, so the tokens near
the largest logit are looked at first, with a bound on what all others weigh together. Nearly always
that decides which token it is; where it does not, everything is computed. So the result is that of
the plain definition, and a function of the row alone. Weights are float32, as logits are; long
sums are float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer[Any]]

_NEAR_DRAW, _NEAR_NUCLEUS = 16.0, 18.0
"""Tokens are near the largest if they weigh at least ``exp(-this)`` of it: the fewer, the quicker,
and the looser the bound; a nucleus needs the tighter one."""
_DENSE = 4  # where more than one in so many is near, everything is computed at once
_FEW = 2048  # weights that are sorted, or summed one by one, outright
_HEAVY = np.float32(math.exp(-8))  # a nucleus is looked for among these first
_GROUPS, _MIN_GROUPS = 8, 512  # groups for each of the k largest that are looked for, and at least
_LOWEST = -3e38  # below any logit but -inf, which bans a token


class Candidates(NamedTuple):
    """Tokens, ids ascending (None: all of the row), their weights, and what others may weigh.

    A weight is ``exp((logit - largest) / temperature)``: a probability but for its scale, which no
    later step needs. The tokens left out that could be drawn weigh at most ``rest`` together.
    """

    ids: Ids | None
    weights: Floats
    rest: float = 0.0

    def kept(self, indices: Ids) -> Candidates:
        """Only those at ``indices``, ascending; nothing else can be drawn."""
        ids = indices if self.ids is None else self.ids[indices]
        return Candidates(ids, self.weights[indices])


def choose(logits: Floats, largest: float, params: SamplingParams, uniform: float) -> int:
    """The token that ``uniform``, in [0, 1), falls on: the inverse of the cumulated weights.

    ``largest`` is the largest of float32[n] ``logits``, a finite number.
    """
    found = candidates(logits, largest, params)
    drawn = draw(found.weights, uniform, found.rest)
    if drawn is None:
        found = candidates(logits, largest, params, whole=True)
        drawn = draw(found.weights, uniform)
    assert drawn is not None  # with nothing left out
    return drawn if found.ids is None else int(found.ids[drawn])


def candidates(
    logits: Floats, largest: float, params: SamplingParams, *, whole: bool = False
) -> Candidates:
    """The tokens that may be drawn; ``whole`` leaves none of them out.

    ``min_p`` and ``top_k`` both keep a most probable part, so that their order does not matter;
    ``top_p`` counts what they leave as the whole, as vLLM does.
    """
    found = _most_probable(logits, largest, params, whole=whole)
    if params.top_p == 1:
        return found
    indices = nucleus(found.weights, params.top_p, found.rest)
    if indices is None:
        found = _most_probable(logits, largest, params, whole=True)
        indices = nucleus(found.weights, params.top_p)
        assert indices is not None  # with nothing left out
    return found.kept(indices)


def _most_probable(
    logits: Floats, largest: float, params: SamplingParams, *, whole: bool
) -> Candidates:
    """What ``min_p`` and ``top_k`` leave; without them what is near the largest, or all."""
    limited = 0 < params.top_k < len(logits)
    bound = 0.0
    if limited:
        ids = largest_k(logits, params.top_k)
        if params.min_p > 0:
            ids = ids[logits[ids] >= _threshold(largest, params, -math.log(params.min_p))]
    elif params.min_p > 0:
        ids = (logits >= _threshold(largest, params, -math.log(params.min_p))).nonzero()[0]
    elif whole:
        return Candidates(None, _weights(logits.copy(), largest, params))
    else:
        near = _NEAR_DRAW if params.top_p == 1 else _NEAR_NUCLEUS
        ids = (logits >= _threshold(largest, params, near)).nonzero()[0]
        if len(ids) * _DENSE > len(logits):
            return Candidates(None, _weights(logits.copy(), largest, params))
        bound = (len(logits) - len(ids)) * math.exp(-near) * 1.01  # rounding included
    return Candidates(ids, _weights(logits[ids], largest, params), bound)


def _threshold(largest: float, params: SamplingParams, distance: float) -> np.float32:
    """The logit of a token that weighs ``exp(-distance)``."""
    return np.float32(max(largest - distance * params.temperature, _LOWEST))


def _weights(logits: Floats, largest: float, params: SamplingParams) -> Floats:
    """The weights of ``logits``, in their place."""
    logits -= np.float32(largest)
    if params.temperature != 1:
        logits *= np.float32(max(1 / params.temperature, 1e-30))  # above 0: -inf stays -inf
    return np.exp(logits, out=logits)


def nucleus(weights: Floats, top_p: float, rest: float = 0.0) -> Ids | None:
    """Indices, ascending, of the fewest largest weights whose sum reaches ``top_p`` of the whole.

    Of equal weights the lower index comes first. Other weights, each below all of these, add up to
    at most ``rest``; None where it depends on how much.
    """
    total = float(weights.sum(dtype=np.float64))
    missing, slack = top_p * total, top_p * rest
    heavy = weights[weights >= _HEAVY]
    between = heavy if float(heavy.sum(dtype=np.float64)) >= missing + slack else weights
    # The smallest weight kept is closed in on from both sides, so that few are ever sorted: the
    # mass above a pivot says on which side of it that is.
    above = 0
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
    if rest and reached[last] < missing + slack:
        return None
    smallest = between[last]
    kept: Ids = (weights >= smallest).nonzero()[0]
    ties = len(kept) - (above + last + 1)
    if ties > 0:
        equal = (weights[kept] == smallest).nonzero()[0]
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


def draw(weights: Floats, uniform: float, rest: float = 0.0) -> int | None:
    """The first index at which the running sum exceeds ``uniform`` (in [0, 1)) of the whole.

    Other weights, wherever among these, add up to at most ``rest``; None where it depends on them.
    """
    before, index, through, total = _fall(weights, uniform)
    decided = before + rest <= uniform * total and uniform * (total + rest) < through
    return index if decided or not rest else None


def _fall(weights: Floats, uniform: float) -> tuple[float, int, float, float]:
    """(sum before, index, sum through it, sum of all) of the weight that ``uniform`` falls on.

    The sum of many weights runs over rows of an almost square table first, then inside the row: 10
    times faster than one running sum, and in an order that depends on the length alone.
    """
    count = len(weights)
    start, before, stop = 0, 0.0, count
    total = None
    if count > _FEW:
        width = math.isqrt(count)
        rows = count // width
        edges = weights[: rows * width].reshape(rows, width).sum(axis=1).cumsum(dtype=np.float64)
        last = float(weights[rows * width :].sum(dtype=np.float64))
        total = edges.item(-1) + last
        row = int(edges.searchsorted(uniform * total, side="right"))
        start, stop = row * width, min(count, (row + 1) * width) if row < rows else count
        before = edges.item(row - 1) if row else 0.0
    running = weights[start:stop].cumsum(dtype=np.float64)
    if total is None:
        total = running.item(-1)
    running += before
    place = int(running.searchsorted(uniform * total, side="right"))
    if place == len(running):
        # Rounding put the target at the end of its row: the last that may be drawn up to there.
        index = int(weights[:stop].nonzero()[0][-1])
        return before, index, math.inf, total
    return (running.item(place - 1) if place else before), start + place, running.item(place), total
