"""Ghosts: what is remembered of pages that were evicted, as long as it may be of use.

A ring of the latest evictions, found by the first eight bytes of a page's key: heads of chains by
fingerprint, and for each entry the one before it in its chain, as in the hash chains of LZ77
compressors (RFC 1951, section 4). An entry is overwritten when the ring comes round; as chains go
from young to old, whatever stands behind an overwritten entry is overwritten too. So nothing is
ever searched for or moved: 20 bytes an entry.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

_NONE = -1
_BACK = 255
_WALK = 64
"""Entries of a chain that are looked at: with a sound hash there are never so many."""


class Ghost(NamedTuple):
    """An evicted page."""

    stamp: int
    """When it was last used, on the clock of :class:`~kvreuse.kv.resting.Resting`."""
    kind: int
    """What kind of page it was: a row of the index of reuse ages."""
    by: int
    """Which of the duelling policies chose it."""


class Ghosts:
    """The latest ``capacity`` evictions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_heads = max(1, capacity // 2)
        self._names = array("Q", bytes(8 * capacity))
        self._stamps = array("I", bytes(4 * capacity))
        self._kinds = bytearray(capacity)
        self._by = bytearray(capacity)
        self._before = array("i", [_NONE]) * capacity
        self._heads = array("i", [_NONE]) * self._num_heads
        self._next = 0
        self._num = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return 22 * self._capacity + 4 * self._num_heads

    def __contains__(self, key: bytes) -> bool:
        """Whether a page of this key was evicted lately, and has not come back since."""
        return bool(key) and self._find(_name(key)) != _NONE

    def add(self, key: bytes, stamp: int, kind: int, by: int) -> Ghost | None:
        """A page is gone; returns the oldest ghost if it had to make way and never came back.

        A tail has no key: nothing finds it, but its time runs as that of others.
        """
        at, oldest = self._next, None
        if self._num < self._capacity:
            self._num += 1
        elif self._by[at] != _BACK:
            oldest = Ghost(self._stamps[at], self._kinds[at], self._by[at])
        name = _name(key)
        self._names[at] = name
        self._stamps[at] = stamp
        self._kinds[at] = kind
        self._by[at] = by
        head = name % self._num_heads
        self._before[at] = self._heads[head]
        self._heads[head] = at
        self._next = at + 1 if at + 1 < self._capacity else 0
        return oldest

    def pop(self, key: bytes) -> Ghost | None:
        """A page is back: what is remembered of it, if anything is."""
        if not self._num:
            return None
        at = self._find(_name(key))
        if at == _NONE:
            return None
        ghost = Ghost(self._stamps[at], self._kinds[at], self._by[at])
        self._by[at] = _BACK
        return ghost

    def _find(self, name: int) -> int:
        """The entry of ``name``, or _NONE."""
        head = name % self._num_heads
        at, names, age = self._heads[head], self._names, -1
        for _ in range(_WALK):
            if at == _NONE or names[at] % self._num_heads != head:
                break
            its_age = self._age(at)
            if its_age <= age:  # overwritten by a younger one: the chain ends
                break
            if names[at] == name:
                return at if self._by[at] != _BACK else _NONE
            at, age = self._before[at], its_age
        return _NONE

    def _age(self, at: int) -> int:
        """Evictions since that of entry ``at``."""
        age = self._next - 1 - at
        return age if age >= 0 else age + self._capacity


def _name(key: bytes) -> int:
    """64 bits that stand for ``key``; 0 for a tail's, which is empty."""
    return int.from_bytes(key[:8], "little")
