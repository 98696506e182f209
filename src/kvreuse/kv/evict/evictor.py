"""Evictor: the pages that only the index owns (idle pages), and the order of their eviction.

Only leaves of the index are evicted. A random sample of the idle leaves is ranked by a policy, and
the leaf of least worth is evicted; its parent may then be an idle leaf and a candidate too. If
there are few leaves all are ranked, and the order is exact.

The clock counts page uses: when a sequence ends, it advances by the number of its pages.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.kv.evict.density import (
    CLOCK,
    MAX_REUSES,
    ReuseAges,
    bucket,
    kinds_of,
    new_kind,
    reuses_of,
)
from kvreuse.kv.evict.duel import FOLLOWER, LRU, Duel
from kvreuse.kv.evict.ghosts import Ghosts
from kvreuse.kv.evict.policy import POLICIES, Candidates, Float64Array, Policy, lru
from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import PrefixIndex

_FEW = 16384

ENDED = -128
"""Rank of pages whose session has ended: they are evicted first."""
UNRANKED = -127
"""Rank of new pages, and of pages reused after ENDED, until a sequence with them ends."""
HIGHEST = 100

_DRAWN = 128
_DRAWN_EACH = 4

Pages = npt.NDArray[np.int32]
Entry = tuple[int, float, int, int]
"""(rank, worth, minus the bytes of tokens up to its end, page): the least is evicted first."""


def num_remembered(num_pages: int) -> int:
    """The capacity of Ghosts: 4 entries for each page of the pool, up to 8 in small pools."""
    return max(4 * num_pages, min(8 * num_pages, _FEW))


class Evictor:
    """The use of each page so far, and the idle leaves, which may be evicted.

    The cache reports what happens to pages: ``born``: added to the index; ``used_again``: a
    sequence started with them; ``used``: a sequence with them ended; ``rest``: only the index owns
    them; ``wake``: they have another owner again. ``evict`` removes those of least worth.
    """

    def __init__(
        self, index: PrefixIndex, num_pages: int, page_size: int, policy: str, cost_per_page: float
    ) -> None:
        """``policy`` is a name in POLICIES; ``cost_per_page`` is the time that each earlier page
        adds to the prefill of a page, in units of the prefill of a first page."""
        self.ghosts = Ghosts(num_remembered(num_pages))
        self.num_idle = 0
        """Pages that only the index owns."""
        self.duel = Duel()
        self.ages = ReuseAges(num_pages)
        self._index = index
        self._page_bytes = page_size * TOKEN_BYTES
        self._policy = POLICIES[policy]
        self._cost_per_page = cost_per_page
        self._clock = 1
        self._entries: list[Entry] = []  # a heap of ranked leaves
        self._entries_of: tuple[int, Policy] | None = None  # clock and policy of the ranking
        self._entries_left = 0  # pages to evict before leaves are ranked anew
        self._draws = np.random.default_rng(0)
        self._leaves = array("i", bytes(4 * num_pages))
        self._places = array("i", [-1]) * num_pages  # index of each page in the leaves
        self._num_leaves = 0
        self.hits = array("I", bytes(4 * num_pages))
        """Sequences that reused each first page since it was added to the index."""
        self._stamps = array("I", bytes(4 * num_pages))
        self._kinds = bytearray(num_pages)
        self._reuses = bytearray(num_pages)
        self._ranks = array("b", bytes(num_pages))
        # Views of the same memory, for array operations.
        self._all_leaves = np.frombuffer(self._leaves, dtype=np.int32)
        self._all_stamps = np.frombuffer(self._stamps, dtype=np.uint32)
        self._all_kinds = np.frombuffer(self._kinds, dtype=np.uint8)
        self._all_reuses = np.frombuffer(self._reuses, dtype=np.uint8)
        self._all_ranks = np.frombuffer(self._ranks, dtype=np.int8)
        self._all_depths = np.frombuffer(index.depths, dtype=np.int32)
        self._all_lengths = np.frombuffer(index.lengths, dtype=np.int32)

    def stamp(self, page: int) -> int:
        """The time of the last use of ``page``, on the clock."""
        return self._stamps[page]

    def born(self, pages: Sequence[int]) -> None:
        """``pages`` were added to the index; some may be pages that were evicted before."""
        clock, kind = self._clock, new_kind(0)
        reuses, kinds, stamps, ranks = self._reuses, self._kinds, self._stamps, self._ranks
        for page in pages:
            self.hits[page] = 0
            reuses[page] = 0
            kinds[page] = kind
            stamps[page] = clock
            ranks[page] = UNRANKED
        for page, (stamp, its_kind, by) in self.ghosts.pop(pages, self._index.names):
            self.ages.reused(its_kind, (clock - stamp) & CLOCK)
            self.duel.regret(by)
            reused = min(reuses_of(its_kind) + 1, MAX_REUSES)
            reuses[page] = reused
            kinds[page] = new_kind(reused)

    def used_again(self, pages: Sequence[int], rank: int) -> None:
        """A sequence starts with ``pages``, or copies from the last of them.

        Pages of rank ENDED get the rank ``rank``.
        """
        if not pages:
            return
        self.hits[pages[0]] += 1
        every = np.array(pages, dtype=np.int32)
        self.ages.reused_all(self._all_kinds[every], self._ages(every))
        self._all_reuses[every] = np.minimum(self._all_reuses[every] + 1, MAX_REUSES)
        self._all_stamps[every] = self._clock
        ranks = self._all_ranks[every]
        self._all_ranks[every] = np.where(ranks == ENDED, rank, ranks)
        self._entries_of = None

    def used(self, pages: Pages, rank: int) -> None:
        """A sequence with ``pages``, in order of position, has ended; raise ranks to ``rank``."""
        if not len(pages):
            return
        self._clock = (self._clock + len(pages)) & CLOCK
        self._all_stamps[pages] = self._clock
        self._all_kinds[pages] = kinds_of(self._all_reuses[pages], len(pages))
        self._all_ranks[pages] = np.maximum(self._all_ranks[pages], rank)

    def end(self, page: int, stamp: int, counts: Sequence[int]) -> None:
        """The session whose last page is ``page`` has ended: its own pages are evicted first.

        Its own pages are those that lead only to ``page`` and were not used after ``stamp``.
        ``counts`` are the numbers of owners by page.
        """
        if not self._index.is_leaf(page) and self._ranks[self._index.first_child(page)] != ENDED:
            return
        while page >= 0 and self._stamps[page] == stamp and counts[page] == 1:
            if not self._index.only_child(page):
                break
            self._ranks[page] = ENDED
            self._entries_of = None
            page = self._index.parent(page)

    def rest(self, num_pages: int, last: int) -> None:
        """``num_pages`` pages became idle; ``last`` is the last one on their path."""
        self.num_idle += num_pages
        self._entries_of = None
        if self._index.is_leaf(last):
            self._add_leaf(last)

    def tick(self, page: int) -> None:
        """The copies from ``page`` are done: it counts as used now."""
        self._clock = (self._clock + 1) & CLOCK
        self._stamps[page] = self._clock

    def wake(self, num_pages: int, last: int) -> None:
        """``num_pages`` idle pages are used again; ``last`` is the last page of their path."""
        self.num_idle -= num_pages
        self._drop_leaf(last)

    def evict(self, n: int, counts: Sequence[int]) -> list[int]:
        """Remove the ``n`` idle pages of least worth from the index; returns them.

        There must be ``n`` idle pages. ``counts`` are the numbers of owners by page; an idle page
        has one. Successive pages of equal last use, kind and rank count as of equal worth.
        """
        by = FOLLOWER if self._policy is lru else self.duel.next(n)
        lru_decides = by == LRU or (by == FOLLOWER and self.duel.lru_wins)
        policy = lru if lru_decides else self._policy
        index = self._index
        evicted: list[int] = []
        if self._entries_of != (self._clock, policy) or self._entries_left < n:
            self._entries = []
        while len(evicted) < n:
            if not self._entries:
                self._draw(n - len(evicted), policy)
            page = heapq.heappop(self._entries)[3]
            if self._places[page] < 0:  # sampled twice, or no longer an idle leaf
                continue
            self._drop_leaf(page)
            page = self._forget_path(page, n - len(evicted), counts, evicted)
            if page >= 0 and index.is_leaf(page) and counts[page] == 1:
                self._add_leaf(page)
                heapq.heappush(self._entries, self._entry(page, policy))
        self.num_idle -= n
        self._entries_left -= n
        self._remember(evicted, by)
        if self.ages.renew(self._clock):
            self.duel.renew()
        return evicted

    def drop(self, page: int) -> None:
        """``page``, a leaf, was removed from the index."""
        if self._places[page] >= 0:
            self._drop_leaf(page)
            self.num_idle -= 1

    def check(self, resting: set[int]) -> bool:
        """Whether the bookkeeping agrees with ``resting``, the pages that only the index owns."""
        leaves = {page for page in resting if self._index.is_leaf(page)}
        known = self._leaves[: self._num_leaves].tolist()
        placed = [self._places[page] for page in known] == list(range(len(known)))
        return placed and self.num_idle == len(resting) and sorted(leaves) == sorted(known)

    def _forget_path(self, page: int, n: int, counts: Sequence[int], forgotten: list[int]) -> int:
        """Remove ``page``, a leaf, and then its ancestors, at most ``n`` pages in all.

        An ancestor is removed if it is an idle leaf by then and of equal worth. Removed pages are
        appended to ``forgotten``; returns the parent of the last one.
        """
        remove, is_leaf = self._index.remove, self._index.is_leaf
        stamps, kinds, ranks = self._stamps, self._kinds, self._ranks
        stamp, kind, rank = stamps[page], kinds[page], ranks[page]
        while True:
            parent = remove(page)
            forgotten.append(page)
            n -= 1
            if (
                n == 0
                or parent < 0
                or counts[parent] != 1
                or stamps[parent] != stamp
                or kinds[parent] != kind
                or ranks[parent] != rank
                or not is_leaf(parent)
            ):
                return parent
            page = parent

    def _remember(self, pages: list[int], by: int) -> None:
        """Put the evicted ``pages`` into Ghosts."""
        clock = self._clock
        old_stamps, old_kinds = self.ghosts.add(
            pages, self._index.names, self._stamps, self._kinds, by
        )
        self.ages.ended(old_kinds, [(clock - stamp) & CLOCK for stamp in old_stamps])

    def _draw(self, n: int, policy: Policy) -> None:
        """Rank a random sample of the idle leaves, or all if they are few, to evict ``n`` pages."""
        drawn = self._all_leaves[: self._num_leaves]
        num_drawn = _DRAWN + _DRAWN_EACH * n
        some = self._num_leaves > num_drawn
        if some:
            drawn = drawn[self._draws.integers(0, self._num_leaves, num_drawn)]
        self._entries_left = n if some else len(self._leaves)
        self._entries_of = self._clock, policy
        depths, ages = self._all_depths[drawn], self._ages(drawn)
        density = self.ages.hit_density(self._all_kinds[drawn], ages)
        worth = policy(Candidates(ages, density, 1.0 + self._cost_per_page * depths))
        ends = -(depths * self._page_bytes + self._all_lengths[drawn])
        ranks = self._all_ranks[drawn]
        least = np.lexsort((ends, worth, ranks))
        if some:
            least = least[:n]
        columns = (column[least].tolist() for column in (ranks, worth, ends, drawn))
        self._entries = list(zip(*columns, strict=True))  # sorted, so a heap

    def _entry(self, page: int, policy: Policy) -> Entry:
        """The heap entry of one page."""
        depth, age = self._index.depths[page], (self._clock - self._stamps[page]) & CLOCK
        density = self.ages.density_of[self._kinds[page]][bucket(age)]
        worth = policy(Candidates(age, density, 1.0 + self._cost_per_page * depth))
        end = depth * self._page_bytes + self._index.lengths[page]
        return self._ranks[page], worth, -end, page

    def _ages(self, pages: Pages) -> Float64Array:
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
