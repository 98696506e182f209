"""ReuseAges: learns at which age pages of each kind are reused, and estimates their hit density.

The age of a page is the number of page uses since it was last used. The kind of a page is given by
its number of reuses, its depth, and its distance from the end of the sequence that used it last.
Each kind has two histograms over logarithmic ages: reuses (also of pages that had been evicted
meanwhile), and ends (of pages that were not reused while Ghosts remembered them).

The hit density of a page of a kind and an age is the largest ratio, over all lengths of a further
stay, of expected reuses to expected stay. This is Gittins' index of a job that may end at any age
(Gittins, "Bandit processes and dynamic allocation indices", 1979). LHD's hit density is the same
ratio for an unlimited stay.
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
"""Times are counts of page uses modulo 2^32: this is their mask."""

_DECAY = 0.97
"""The factor by which a renewal decays all counts."""
_RENEWAL = 4096
"""Page uses from one renewal to the next: at least so many, fewer at first."""
_PENDING = 1024
_PRIOR = 50.0
"""Weight, in observations, of the prior that each kind gets from other kinds."""

_EDGES = 2.0 ** (np.arange(NUM_AGES + 1) / PER_OCTAVE)

Kinds = npt.NDArray[np.uint8]


def kinds_of(reuses: npt.NDArray[np.integer], num_pages: int) -> Kinds:
    """uint8[num_pages]: the kind of each page of a sequence, from its first on.

    ``reuses`` int[num_pages]: how often each was reused, at most ``MAX_REUSES``.
    """
    depth = np.arange(num_pages)
    behind = num_pages - 1 - depth
    part = np.minimum((_bit_length(behind) + 1) // 2, _NUM_BEHIND - 1)
    place = np.searchsorted(_DEPTHS, depth, side="right") * _NUM_BEHIND + part
    return (reuses * _PLACES + place).astype(np.uint8)


def reuses_of(kind: int) -> int:
    """How often a page of ``kind`` was reused."""
    return kind // _PLACES


def new_kind(reuses: int) -> int:
    """The kind of a page whose sequence is still running."""
    return reuses * _PLACES


class ReuseAges:
    """Histograms of reuses and ends by kind and age; ``renew`` computes hit densities from them."""

    def __init__(self, num_pages: int) -> None:
        """For a cache of ``num_pages`` pages."""
        self._counts = np.zeros((2, NUM_KINDS, NUM_AGES))
        self._reused, self._ended = self._counts
        self._ended_kinds = array("B")
        self._ended_ages = array("I")
        self._interval = max(_RENEWAL, num_pages)
        self._renewed_at, self._passed, self._wait = 0, 0, _RENEWAL // 4
        self._density: Float64Array = np.tile(1 / _EDGES[:-1], (NUM_KINDS, 1))
        self.density_of: list[list[float]] = self._density.tolist()
        """The hit density by kind and :func:`bucket` of age. At first it falls with age, as in
        LRU."""

    def hit_density(self, kinds: Kinds, ages: Float64Array) -> Float64Array:
        """float64[n]: the hit density of pages of these kinds and ages."""
        density: Float64Array = self._density[kinds, _buckets(ages)]
        return density

    def reused_all(self, kinds: Kinds, ages: Float64Array) -> None:
        """Count resident pages of these kinds that were reused at these ages."""
        np.add.at(self._reused, (kinds, _buckets(ages)), 1)

    def reused(self, kind: int, age: int) -> None:
        """Count an evicted page that came back at this age."""
        self._reused[kind, bucket(age)] += 1

    def ended(self, kinds: Sequence[int], ages: Sequence[int]) -> None:
        """Count pages of these kinds that were not reused within these ages."""
        self._ended_kinds.extend(kinds)
        self._ended_ages.extend(ages)
        if len(self._ended_ages) >= _PENDING:
            self._count_ended()

    def _count_ended(self) -> None:
        """Add the pending ends to the histogram, many at a time because that is faster."""
        kinds, ages = np.array(self._ended_kinds), np.array(self._ended_ages, dtype=np.float64)
        np.add.at(self._ended, (kinds, _buckets(ages)), 1)
        self._ended_kinds = array("B")
        self._ended_ages = array("I")

    def renew(self, now: int) -> bool:
        """Recompute the hit densities if a renewal is due; returns whether it was."""
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
    """The index of an age in the histograms."""
    return min(int(math.log2(age) * PER_OCTAVE), NUM_AGES - 1) if age > 1 else 0


def _buckets(ages: Float64Array) -> npt.NDArray[np.int64]:
    places = (np.log2(np.maximum(ages, 1)) * PER_OCTAVE).astype(np.int64)
    clipped: npt.NDArray[np.int64] = np.minimum(places, NUM_AGES - 1)
    return clipped


def _bit_length(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int.bit_length of each number; exact below 2**53."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _filled(counts: Float64Array) -> Float64Array:
    """``counts``, float64[2, kinds, ages] of both histograms, plus a prior for each kind.

    The prior of a kind is the sum of the kinds with the same number of reuses, scaled to _PRIOR
    observations; the prior of that sum is the sum of all kinds.
    """
    all_kinds = counts.sum(axis=1, keepdims=True)
    groups = counts.reshape(2, -1, _PLACES, NUM_AGES).sum(axis=2)
    groups = groups + all_kinds * (_PRIOR / max(float(all_kinds.sum()), 1.0))
    groups *= _PRIOR / np.maximum(groups.sum(axis=(0, 2), keepdims=True), 1e-9)
    filled: Float64Array = counts + np.repeat(groups, _PLACES, axis=1)
    return filled


def _gittins(reused: Float64Array, ended: Float64Array) -> Float64Array:
    """float64[kinds, ages]: the maximum over t of (reuses until t) / (time stayed until t)."""
    leaving = reused + ended
    staying = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]  # pages that reach this age
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
