"""ReuseAges: at which age pages of a kind are used again, learned while they are.

The age of a page is the number of pages used since it was. For each kind, by how often a page was
reused, how deep it lies and how far before the end of the sequence that used it last, two
histograms over logarithmic ages: reuses, also of pages that had been evicted meanwhile, and ends,
of pages that were not used again as long as they were remembered.

From them follows what a page of a kind and an age is worth: the most reuses for each page-time
that any further stay promises, which is Gittins' index of a job that may end at any age (Gittins,
"Bandit processes and dynamic allocation indices", 1979). LHD's hit density is the same with a stay
without end.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.kv.evict.policy import Float64Array

PER_OCTAVE = 2
NUM_AGES = 24 * PER_OCTAVE
MAX_REUSES = 2
_DEPTHS = (2, 16)  # pages
_NUM_DEPTHS = len(_DEPTHS) + 1
_NUM_BEHIND = 4
_PLACES = _NUM_DEPTHS * _NUM_BEHIND
NUM_KINDS = (MAX_REUSES + 1) * _PLACES

CLOCK = 0xFFFFFFFF
"""Times are page uses, modulo a number of 32 bits."""

_DECAY = 0.97
"""What an observation still counts after a renewal."""
_RENEWAL = 4096
"""Page uses, at least, from one renewal to the next; less at first."""
_PENDING = 1024
_PRIOR = 50.0
"""Observations of others that stand in for those that a kind lacks."""

_EDGES = 2.0 ** (np.arange(NUM_AGES + 1) / PER_OCTAVE)

Kinds = npt.NDArray[np.uint8]


def kinds_of(reuses: npt.NDArray[np.integer], num_pages: int) -> Kinds:
    """uint8[num_pages]: the kind of each page of a sequence, from its first on.

    ``reuses`` int[num_pages]: how often each was used again, at most ``MAX_REUSES``.
    """
    depth = np.arange(num_pages)
    behind = num_pages - 1 - depth
    part = np.minimum((_bit_length(behind) + 1) // 2, _NUM_BEHIND - 1)
    place = np.searchsorted(_DEPTHS, depth, side="right") * _NUM_BEHIND + part
    return (reuses * _PLACES + place).astype(np.uint8)


def reuses_of(kind: int) -> int:
    """How often a page of ``kind`` was used again."""
    return kind // _PLACES


def new_kind(reuses: int) -> int:
    """The kind of a page whose sequence is still running."""
    return reuses * _PLACES


class ReuseAges:
    """The index of reuse ages; ``hit_density`` is renewed from it now and then."""

    def __init__(self, num_pages: int) -> None:
        """Of a cache of ``num_pages`` pages."""
        self._counts = np.zeros((2, NUM_KINDS, NUM_AGES))
        self._reused, self._ended = self._counts
        self._ended_kinds = array("B")
        self._ended_ages = array("I")
        self._interval = max(_RENEWAL, num_pages)
        self._renewed_at, self._passed, self._wait = 0, 0, _RENEWAL // 4
        self._density: Float64Array = np.tile(1 / _EDGES[:-1], (NUM_KINDS, 1))
        self.density_of: list[list[float]] = self._density.tolist()
        """What a page is worth, by its kind and the :func:`bucket` of its age; as LRU has it until
        something is known."""

    def hit_density(self, kinds: Kinds, ages: Float64Array) -> Float64Array:
        """float64[n]: what pages of these kinds and ages are worth."""
        density: Float64Array = self._density[kinds, _buckets(ages)]
        return density

    def reused_all(self, kinds: Kinds, ages: Float64Array) -> None:
        """Pages of these kinds were used again at these ages."""
        np.add.at(self._reused, (kinds, _buckets(ages)), 1)

    def reused(self, kind: int, age: int) -> None:
        """An evicted page came back."""
        self._reused[kind, bucket(age)] += 1

    def ended(self, kinds: Sequence[int], ages: Sequence[int]) -> None:
        """Pages of these kinds were not used again within these ages."""
        self._ended_kinds.extend(kinds)
        self._ended_ages.extend(ages)
        if len(self._ended_ages) >= _PENDING:
            self._count_ended()

    def _count_ended(self) -> None:
        """Counting many at a time is quicker."""
        kinds, ages = np.array(self._ended_kinds), np.array(self._ended_ages, dtype=np.float64)
        np.add.at(self._ended, (kinds, _buckets(ages)), 1)
        self._ended_kinds = array("B")
        self._ended_ages = array("I")

    def renew(self, now: int) -> bool:
        """Learn from what was counted, if it is time; whether it was."""
        passed = (now - self._renewed_at) & CLOCK
        if passed < self._wait:
            return False
        self._count_ended()
        self._renewed_at, self._passed = now, self._passed + passed
        self._wait = min(self._passed, self._interval)
        self._density = _gittins(*_filled(self._counts))
        self.density_of = self._density.tolist()
        self._counts *= _DECAY
        return True


def bucket(age: int) -> int:
    """The place of an age in the histograms."""
    return min(int(math.log2(age) * PER_OCTAVE), NUM_AGES - 1) if age > 1 else 0


def _buckets(ages: Float64Array) -> npt.NDArray[np.int64]:
    places = (np.log2(np.maximum(ages, 1)) * PER_OCTAVE).astype(np.int64)
    clipped: npt.NDArray[np.int64] = np.minimum(places, NUM_AGES - 1)
    return clipped


def _bit_length(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """As int.bit_length, exact below 2**53."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _filled(counts: Float64Array) -> Float64Array:
    """``counts`` float64[2, kinds, ages], of both histograms, with a prior for each kind.

    That is what the kinds of the same number of reuses have together, for which in turn that of all
    kinds stands in.
    """
    all_kinds = counts.sum(axis=1, keepdims=True)
    groups = counts.reshape(2, -1, _PLACES, NUM_AGES).sum(axis=2)
    groups = groups + all_kinds * (_PRIOR / max(float(all_kinds.sum()), 1.0))
    groups *= _PRIOR / np.maximum(groups.sum(axis=(0, 2), keepdims=True), 1e-9)
    filled: Float64Array = counts + np.repeat(groups, _PLACES, axis=1)
    return filled


def _gittins(reused: Float64Array, ended: Float64Array) -> Float64Array:
    """float64[kinds, ages]: for each age the best of (reuses until t) / (page-time until t)."""
    leaving = reused + ended
    staying = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]  # as many come to the age at all
    spent = (staying - leaving / 2) * np.diff(_EDGES)
    time = np.cumsum(spent, axis=1)
    hits = np.cumsum(reused, axis=1)
    hits_before, time_before = hits - reused, time - spent
    best = np.zeros_like(hits)
    for age in range(NUM_AGES):
        more = hits[:, age:] - hits_before[:, age : age + 1]
        longer = time[:, age:] - time_before[:, age : age + 1]
        best[:, age] = (more / np.maximum(longer, 1e-9)).max(axis=1)
    return best
