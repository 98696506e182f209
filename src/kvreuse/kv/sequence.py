"""SeqKV: the pages of one running sequence, and how far they are written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.kv.pool import PageError
from kvreuse.kv.prefix import PrefixIndex
from kvreuse.kv.roots import Root

_FIRST_CAPACITY = 8


class SeqKV:
    """A table of pages and two cursors. Only KVCache changes it.

    ::

        |<- found in the index, shared ->|<- its own ->|
        |<------------- written ------------>|               keys and values are in pages
        |<------------------- reserved ------------------->| room in pages

    ``node`` stands in the index for the last full page written: every full page of a table is the
    index's page for its tokens. ``source`` is a page that rows have yet to be copied from.
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
        """``pages`` are full; ``node`` is the index's for the last one, or that of ``root``."""
        self.page_size = page_size
        self.node = node
        self.root = root
        """Held so that it stays the root of its salt."""
        self.table: npt.NDArray[np.int32] = np.zeros(
            max(_FIRST_CAPACITY, len(pages) + 2), dtype=np.int32
        )
        """int32[capacity]: page ids in order of position; the first ``num_pages`` count."""
        self.table[: len(pages)] = pages
        self.num_pages = len(pages)
        self.written = len(pages) * page_size
        self.version = 0
        """Changes whenever an entry of the table that counts does."""
        self.source: int | None = None
        self.next_page: tuple[int, bytes] | None = None
        """The full page that this sequence is computing, if its tokens are known."""
        self.closed = False

    @property
    def reserved(self) -> int:
        """Tokens that the pages have room for."""
        return self.num_pages * self.page_size

    @property
    def pages(self) -> list[int]:
        """The page ids that count."""
        pages: list[int] = self.table[: self.num_pages].tolist()
        return pages

    def extend(self, pages: list[int]) -> None:
        """Put ``pages`` at the end of the table."""
        end = self.num_pages + len(pages)
        if end > len(self.table):
            grown = np.zeros(max(end, 2 * len(self.table)), dtype=np.int32)
            grown[: self.num_pages] = self.table[: self.num_pages]
            self.table = grown
        self.table[self.num_pages : end] = pages
        self.num_pages = end
        self.version += 1

    def check_open(self) -> None:
        """Raise PageError if it was closed."""
        if self.closed:
            raise PageError("this sequence has been closed")

    def check(self, index: PrefixIndex) -> None:
        """Raise PageError unless all full pages are the index's for their tokens."""
        if not self.written <= self.reserved:
            raise PageError(f"{self.written} tokens written with room for {self.reserved}")
        node, full = self.node, self.written // self.page_size
        if node is None:
            return
        for page in reversed(self.pages[:full]):
            if node != page or not index.is_full(page):
                raise PageError(f"page {page} is full, but is not the index's for its tokens")
            node = index.parent(page)
        if node >= 0:
            raise PageError("a sequence is shorter than the pages before its last one")
