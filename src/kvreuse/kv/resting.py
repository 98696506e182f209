"""Resting: the pages that only the index owns, and which of them go next.

Only leaves go: pages that no other continues. Some of them are drawn at random, a policy says what
each is worth, and the least goes, then maybe the page that it continued, which is a leaf now.
Where there are few leaves all are looked at, and the order is exact.

The clock counts page uses: it moves by the pages of a sequence when that ends.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.kv.density import MAX_REUSES, ReuseAges, bucket, kinds_of, new_kind, reuses_of
from kvreuse.kv.duel import FOLLOWER, LRU, Duel
from kvreuse.kv.ghosts import Ghosts
from kvreuse.kv.policy import POLICIES, Candidates, Float64Array, Policy, lru
from kvreuse.kv.prefix import PrefixIndex

_FEW = 16384

ENDED = -128
"""Rank of pages whose session has ended: they go first."""
UNRANKED = -127
HIGHEST = 100

_DRAWN = 64
_DRAWN_EACH = 2
_CLOCK = 0xFFFFFFFF

Entry = tuple[int, float, int, int]
"""(rank, worth, minus the depth in tokens, page): the least is evicted."""


def num_remembered(num_pages: int) -> int:
    """Evicted pages that are remembered: 4 for each page of the pool, 8 where they are few."""
    return max(4 * num_pages, min(8 * num_pages, _FEW))


class Resting:
    """What is known of the use of each page; the leaves that may be evicted."""

    def __init__(
        self, index: PrefixIndex, num_pages: int, page_size: int, policy: str, cost_per_page: float
    ) -> None:
        """``policy`` is a name of POLICIES; ``cost_per_page`` is what each page before a page
        adds to what its prefill costs, in units of what a first page's does."""
        self.ghosts = Ghosts(num_remembered(num_pages))
        self.num_idle = 0
        """Pages that only the index owns."""
        self.duel = Duel()
        self.ages = ReuseAges(num_pages)
        self._index = index
        self._page_size = page_size
        self._policy = POLICIES[policy]
        self._cost_per_page = cost_per_page
        self._clock = 1
        self._draws = np.random.default_rng(0)
        self._leaves = array("i", bytes(4 * num_pages))
        self._places = array("i", [-1]) * num_pages  # of each page among the leaves
        self._num_leaves = 0
        self._stamps = array("I", bytes(4 * num_pages))
        self._kinds = bytearray(num_pages)
        self._reuses = bytearray(num_pages)
        self._ranks = array("b", bytes(num_pages))
        # The same memory, many entries at a time.
        self._all_leaves = np.frombuffer(self._leaves, dtype=np.int32)
        self._all_stamps = np.frombuffer(self._stamps, dtype=np.uint32)
        self._all_kinds = np.frombuffer(self._kinds, dtype=np.uint8)
        self._all_reuses = np.frombuffer(self._reuses, dtype=np.uint8)
        self._all_ranks = np.frombuffer(self._ranks, dtype=np.int8)
        self._all_depths = np.frombuffer(index.depths, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays with an entry a page, ghosts included."""
        return 14 * len(self._leaves) + self.ghosts.nbytes

    def stamp(self, page: int) -> int:
        """When ``page`` was used last, on the clock."""
        return self._stamps[page]

    def rank(self, page: int) -> int:
        """The rank of ``page``: lower ones go before all higher ones."""
        return self._ranks[page]

    def born(self, page: int) -> None:
        """``page`` has come into the index; maybe it is one that was evicted."""
        reuses = 0
        ghost = self.ghosts.pop(self._index.key(page)) if self._index.is_full(page) else None
        if ghost is not None:
            self.ages.reused(ghost.kind, self._age(ghost.stamp))
            self.duel.regret(ghost.by)
            reuses = min(reuses_of(ghost.kind) + 1, MAX_REUSES)
        self._reuses[page] = reuses
        self._kinds[page] = new_kind(reuses)
        self._stamps[page] = self._clock
        self._ranks[page] = UNRANKED

    def used_again(self, pages: Sequence[int]) -> None:
        """A sequence starts with ``pages``, or copies from the last of them."""
        if not pages:
            return
        every = np.array(pages, dtype=np.intp)
        self.ages.reused_all(self._all_kinds[every], self._ages(every))
        self._all_reuses[every] = np.minimum(self._all_reuses[every] + 1, MAX_REUSES)
        self._all_stamps[every] = self._clock
        ranks = self._all_ranks[every]
        self._all_ranks[every] = np.where(ranks == ENDED, 0, ranks)

    def used(self, pages: Sequence[int], rank: int) -> None:
        """A sequence with ``pages`` of the index, in order of position, has ended."""
        if not pages:
            return
        every = np.array(pages, dtype=np.intp)
        self._clock = (self._clock + len(pages)) & _CLOCK
        self._all_stamps[every] = self._clock
        self._all_kinds[every] = kinds_of(self._all_reuses[every], len(pages))
        self._all_ranks[every] = np.maximum(self._all_ranks[every], rank)

    def end(self, page: int, stamp: int, is_free: Callable[[int], bool]) -> None:
        """The session that used ``page`` last has ended: its own pages go first.

        Its own are those that lead to ``page`` alone, and that nobody used after ``stamp``.
        """
        if not self._index.is_leaf(page):
            return
        while page >= 0 and self._stamps[page] == stamp and is_free(page):
            if not self._index.only_child(page):
                break
            self._ranks[page] = ENDED
            page = self._index.parent(page)

    def rest(self, pages: Sequence[int]) -> None:
        """Only the index owns ``pages`` now: a path, or a part of one, in order of position."""
        self.num_idle += len(pages)
        if pages and self._index.is_leaf(pages[-1]):
            self._add_leaf(pages[-1])

    def tick(self, page: int) -> None:
        """Nobody copies from ``page`` any more."""
        self._clock = (self._clock + 1) & _CLOCK
        self._stamps[page] = self._clock

    def wake(self, num_pages: int, last: int) -> None:
        """Somebody uses ``num_pages`` pages that rested; ``last`` is the last one on their path."""
        self.num_idle -= num_pages
        self._drop_leaf(last)

    def is_leaf(self, page: int) -> bool:
        """Whether ``page`` may be evicted."""
        return self._places[page] >= 0

    def evict(self, n: int, rests: Callable[[int], bool]) -> list[int]:
        """Forget the ``n`` pages that are worth least; there must be so many that rest.

        ``rests`` tells whether only the index owns a page.
        """
        by = FOLLOWER if self._policy is lru else self.duel.next(n)
        lru_decides = by == LRU or (by == FOLLOWER and self.duel.lru_wins)
        policy = lru if lru_decides else self._policy
        entries = self._drawn(_DRAWN + _DRAWN_EACH * n, policy)
        index = self._index
        evicted: list[int] = []
        while len(evicted) < n:
            if not entries:
                entries = self._drawn(_DRAWN, policy)
            page = heapq.heappop(entries)[3]
            if self._places[page] < 0:  # drawn twice
                continue
            parent = index.parent(page)
            self._forget(page, by)
            evicted.append(page)
            if parent >= 0 and index.is_leaf(parent) and rests(parent):
                self._add_leaf(parent)
                heapq.heappush(entries, self._entry(parent, policy))
        self.num_idle -= n
        if self.ages.renew(self._clock):
            self.duel.renew()
        return evicted

    def drop(self, page: int) -> None:
        """``page``, a leaf, is no longer in the index."""
        if self._places[page] >= 0:
            self._drop_leaf(page)
            self.num_idle -= 1

    def check(self, resting: set[int]) -> bool:
        """Whether ``resting``, the pages that only the index owns, are what is known of them."""
        leaves = {page for page in resting if self._index.is_leaf(page)}
        known = self._leaves[: self._num_leaves].tolist()
        placed = [self._places[page] for page in known] == list(range(len(known)))
        return placed and self.num_idle == len(resting) and sorted(leaves) == sorted(known)

    def _forget(self, page: int, by: int) -> None:
        """Evict ``page``, a leaf."""
        index = self._index
        key = index.key(page) if index.is_full(page) else b""
        oldest = self.ghosts.add(key, self._stamps[page], self._kinds[page], by)
        if oldest is not None:
            self.ages.ended(oldest.kind, self._age(oldest.stamp))
        self._drop_leaf(page)
        index.remove(page)

    def _drawn(self, n: int, policy: Policy) -> list[Entry]:
        """Leaves drawn at random, or all where there are few; a heap."""
        leaves = self._all_leaves[: self._num_leaves]
        if n < len(leaves):
            leaves = leaves[self._draws.integers(0, len(leaves), n)]
        depths = self._all_depths[leaves]
        ages = self._ages(leaves)
        density = self.ages.hit_density(self._all_kinds[leaves], ages)
        worth = policy(Candidates(ages, density, 1.0 + self._cost_per_page * depths))
        ends = [-self._end(page) for page in leaves.tolist()]
        ranks = self._all_ranks[leaves].tolist()
        return sorted(zip(ranks, worth.tolist(), ends, leaves.tolist(), strict=True))

    def _entry(self, page: int, policy: Policy) -> Entry:
        """The same for one page."""
        age = self._age(self._stamps[page])
        density = self.ages.density[self._kinds[page], bucket(age)]
        cost = 1.0 + self._cost_per_page * self._index.depths[page]
        worth = policy(Candidates(age, density, cost))
        return self._ranks[page], float(worth), -self._end(page), page

    def _end(self, page: int) -> int:
        """Tokens from the start of the sequence to the end of ``page``."""
        return self._index.depths[page] * self._page_size + self._index.length(page)

    def _age(self, stamp: int) -> int:
        return (self._clock - stamp) & _CLOCK

    def _ages(self, pages: npt.NDArray[np.integer[Any]]) -> Float64Array:
        ages: Float64Array = (np.uint32(self._clock) - self._all_stamps[pages]).astype(np.float64)
        return ages

    def _add_leaf(self, page: int) -> None:
        if self._places[page] < 0:
            self._leaves[self._num_leaves] = page
            self._places[page] = self._num_leaves
            self._num_leaves += 1

    def _drop_leaf(self, page: int) -> None:
        place = self._places[page]
        if place < 0:
            return
        self._num_leaves -= 1
        last = self._leaves[self._num_leaves]
        self._leaves[place] = last
        self._places[last] = place
        self._places[page] = -1
