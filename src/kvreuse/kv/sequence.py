"""SeqKV: the page table of one running sequence, and the number of tokens written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.kv.pool import PageError
from kvreuse.kv.prefix import PrefixIndex
from kvreuse.kv.roots import Root

_FIRST_CAPACITY = 8


class SeqKV:
    """A page table and two cursors. Only KVCache changes it.

    ::

        |<- found in the index, shared ->|<- its own ->|
        |<------------- written ------------>|               keys and values are in pages
        |<------------------- reserved ------------------->| room in pages

    ``node`` is the node of the index for the last full page written: every full page of a table is
    the index's page for its tokens. ``source`` is a page whose rows are still to be copied.
    """

    __slots__ = (
        "closed",
        "next_page",
        "node",
        "num_pages",
        "page_size",
        "root",
        "source",
        "table",
        "version",
        "written",
    )

    def __init__(
        self, page_size: int, node: int | None, pages: list[int], root: Root | None = None
    ) -> None:
        """``pages`` are full; ``node`` is the last of them, or the node of ``root``."""
        self.page_size = page_size
        self.node = node
        self.root = root
        """A reference that keeps the root of the salt alive."""
        self.table: npt.NDArray[np.int32] = np.zeros(
            max(_FIRST_CAPACITY, len(pages) + 2), dtype=np.int32
        )
        """int32[capacity]: page ids in order of position; only the first ``num_pages`` are used."""
        self.table[: len(pages)] = pages
        self.num_pages = len(pages)
        self.written = len(pages) * page_size
        self.version = 0
        """Changes with every change of a used entry of the table."""
        self.source: int | None = None
        self.next_page: tuple[int, bytes] | None = None
        """(node, tokens) of the full page that it is computing, if all its tokens are known."""
        self.closed = False

    @property
    def reserved(self) -> int:
        """Tokens that the pages have room for."""
        return self.num_pages * self.page_size

    @property
    def pages(self) -> list[int]:
        """The page ids of the table."""
        pages: list[int] = self.table[: self.num_pages].tolist()
        return pages

    def extend(self, pages: list[int]) -> None:
        """Append ``pages`` to the table."""
        end = self.num_pages + len(pages)
        if end > len(self.table):
            grown = np.zeros(max(end, 2 * len(self.table)), dtype=np.int32)
            grown[: self.num_pages] = self.table[: self.num_pages]
            self.table = grown
        self.table[self.num_pages : end] = pages
        self.num_pages = end
        self.version += 1

    def check_open(self) -> None:
        """Raise PageError if the sequence has been closed."""
        if self.closed:
            raise PageError("this sequence has been closed")

    def check(self, index: PrefixIndex) -> None:
        """Raise PageError unless each full page is the index's page for its tokens."""
        if not self.written <= self.reserved:
            raise PageError(f"{self.written} tokens written with room for {self.reserved}")
        node, full = self.node, self.written // self.page_size
        if node is None:
            return
        for page in reversed(self.pages[:full]):
            if node != page or not index.is_full(page):
                raise PageError(f"page {page} is full, but not the index's page for its tokens")
            node = index.parent(page)
        if node >= 0:
            raise PageError("a sequence is shorter than the pages before its last one")
