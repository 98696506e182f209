"""SizesBelow: the numbers of pages and leaves below each first page, kept up to date."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np

from kvreuse.kv.pool import PageError


class SizesBelow:
    """For each first page: the number of pages of its subtree, itself included, and of leaves."""

    def __init__(self, num_pages: int) -> None:
        self._firsts = array("i", bytes(4 * num_pages))  # the first page of each page's path
        self._pages = array("i", bytes(4 * num_pages))
        self._leaves = array("i", bytes(4 * num_pages))
        self._all_pages = np.frombuffer(self._pages, dtype=np.int32)
        self.firsts_array = np.frombuffer(self._firsts, dtype=np.int32)
        """int32[num_pages]: the first page before each page of the index."""

    def pages(self, first: int) -> int:
        """Pages of the subtree of ``first``; 0 if it is not a first page."""
        return self._pages[first]

    def leaves(self, first: int) -> int:
        """Leaves of the subtree of ``first``."""
        return self._leaves[first]

    def largest(self, n: int) -> list[int]:
        """The ``n`` first pages with most pages, the largest first, of equal ones any."""
        firsts = np.flatnonzero(self._all_pages)
        counts = self._all_pages[firsts]
        if n < len(firsts):
            some = np.argpartition(counts, -n)[len(firsts) - n :]
            firsts, counts = firsts[some], counts[some]
        largest: list[int] = firsts[np.argsort(-counts, kind="stable")].tolist()
        return largest

    def added(self, parent: int, page: int, *, branches: bool) -> None:
        """``page`` was added below ``parent``; ``branches``: that has other children."""
        first = self._firsts[parent] if parent >= 0 else page
        self._firsts[page] = first
        self._pages[first] += 1
        self._leaves[first] += branches or parent < 0

    def appended(self, leaf: int, pages: Sequence[int]) -> None:
        """``pages`` were added below ``leaf``, each as the child of the one before it."""
        firsts, first = self._firsts, self._firsts[leaf]
        for page in pages:
            firsts[page] = first
        self._pages[first] += len(pages)

    def removed(self, page: int, *, branches: bool) -> None:
        """``page``, a leaf, was removed; ``branches``: its parent has other children."""
        first = self._firsts[page]
        self._pages[first] -= 1
        self._leaves[first] -= branches or first == page

    def check(self, firsts: Sequence[int], children: Callable[[int], Sequence[int]]) -> None:
        """Raise PageError unless the counts are right. Visits all pages."""
        for first in firsts:
            pages, leaves, pending = 0, 0, [first]
            while pending:
                below = children(pending.pop())
                pages += 1
                leaves += not below
                pending += below
            if (pages, leaves) != (self._pages[first], self._leaves[first]):
                raise PageError(f"the pages below the first page {first} are miscounted")
        if int(self._all_pages.sum()) != sum(self._pages[first] for first in firsts):
            raise PageError("pages are counted below a page that is not a first page")
