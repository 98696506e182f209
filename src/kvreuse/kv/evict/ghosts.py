"""Ghosts: a record of the latest evictions (a ghost list), found by name.

The name of a page is in ``PrefixIndex.names``. Entries form a ring buffer with hash chains, as in
LZ77 compressors (RFC 1951, section 4): a head for each chain, and for each entry the previous one
in its chain. New entries overwrite the oldest. Chains go from young to old, so all entries behind
an overwritten one are overwritten too, and a chain ends there; entries are never moved or
unlinked. An entry takes 22 bytes, heads included.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_NONE = -1
_BACK = 255
_WALK = 64
"""Entries of a chain that a search visits at most; with a good hash chains are much shorter."""


Ghost = tuple[int, int, int]
"""(last use on the Evictor's clock, kind as in ``density.kinds_of``, side of the Duel that evicted
it): the record of an evicted page."""


class Ghosts:
    """The latest ``capacity`` evictions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._names = array("Q", bytes(8 * capacity))
        self._stamps = array("I", bytes(4 * capacity))
        self._kinds = bytearray(capacity)
        self._by = bytearray(capacity)
        self._before = array("i", [_NONE]) * capacity
        self._heads = array("i", [_NONE]) * self._capacity
        self._next = 0
        self._num = 0

    def __contains__(self, name: int) -> bool:
        """Whether a page of this name was evicted recently, and has not come back since."""
        return self._find(name, self._heads[name % self._capacity]) >= 0

    def add(
        self,
        pages: Sequence[int],
        names: Sequence[int],
        stamps: Sequence[int],
        kinds: Sequence[int],
        by: int,
    ) -> tuple[list[int], list[int]]:
        """Record that ``pages`` were evicted, in this order; the other lists are indexed by page.

        Returns stamps and kinds of the overwritten entries whose pages never came back. A tail has
        no name (0): it cannot be found, but takes an entry like any other page.
        """
        old_stamps: list[int] = []
        old_kinds: list[int] = []
        my_names, my_stamps, my_kinds, my_by = self._names, self._stamps, self._kinds, self._by
        heads, before, num_heads = self._heads, self._before, self._capacity
        at, full = self._next, self._num == self._capacity
        for page in pages:
            if full and my_by[at] != _BACK:
                old_stamps.append(my_stamps[at])
                old_kinds.append(my_kinds[at])
            name = names[page]
            my_names[at] = name
            my_stamps[at] = stamps[page]
            my_kinds[at] = kinds[page]
            my_by[at] = by
            chain = name % num_heads
            before[at] = heads[chain]
            heads[chain] = at
            at += 1
            if at == self._capacity:
                at, full = 0, True
        self._num = self._capacity if full else at
        self._next = at
        return old_stamps, old_kinds

    def pop(self, pages: Sequence[int], names: Sequence[int]) -> list[tuple[int, Ghost]]:
        """Find and mark the entries of ``pages``, which are now resident: (page, its Ghost).

        ``names`` is indexed by page.
        """
        back: list[tuple[int, Ghost]] = []
        if self._num == 0:
            return back
        heads, num_heads = self._heads, self._capacity
        for page in pages:
            name = names[page]
            at = heads[name % num_heads]
            if at >= 0:
                at = self._find(name, at)
                if at >= 0:
                    back.append((page, (self._stamps[at], self._kinds[at], self._by[at])))
                    self._by[at] = _BACK
        return back

    def _find(self, name: int, at: int) -> int:
        """The entry of ``name`` in the chain whose head is ``at``, or _NONE."""
        names, before, youngest, capacity = (
            self._names,
            self._before,
            self._next - 1,
            self._capacity,
        )
        age = -1
        for _ in range(_WALK):
            its_age = (youngest - at) % capacity
            if at < 0 or its_age <= age:  # overwritten by a younger entry: end of the chain
                break
            if names[at] == name:
                return at if name and self._by[at] != _BACK else _NONE
            at, age = before[at], its_age
        return _NONE
