"""PagePool: the memory of all keys and values, in pages with reference counts.

One anonymous mapping is made at start and not touched: the system gives memory to a page when it is
first written. Free pages form a stack, so that pages used last, which have memory already, are
allocated first. Not thread-safe: one engine owns a pool.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.sizes import format_size

_HUGE_PAGE = 2 << 20
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named in Python from 3.12 on


class PageError(RuntimeError):
    """A page was used by a caller that does not own it, or a conservation law is broken: a bug."""


class PagePool:
    """``num_pages`` pages of ``layout.page_bytes`` bytes, with a reference count each.

    ``data`` is uint8[num_pages, page_bytes], its start aligned to 2 MiB. The conservation law,
    ``free + used == num_pages`` and a page is free exactly if its count is 0, holds after every
    method, also one that raised. Raises ConfigError if ``num_pages`` < 1 or memory is refused.
    """

    def __init__(self, layout: KVLayout, num_pages: int) -> None:
        """Map the memory. Each page takes 8 bytes of memory until it is written."""
        if num_pages < 1:
            raise ConfigError(f"a pool needs at least one page, got {num_pages}")
        self.layout = layout
        self.num_pages = num_pages
        self.peak_used = 0
        self.data = _map_aligned(num_pages * layout.page_bytes).reshape(num_pages, -1)
        self._counts = array("i", bytes(4 * num_pages))
        self._all_counts = np.frombuffer(self._counts, dtype=np.int32)  # the same memory
        self._free = array("i", range(num_pages - 1, -1, -1))  # a stack: page 0 on top
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        """Pages without an owner, which :meth:`alloc` can return."""
        return self._num_free

    @property
    def num_used(self) -> int:
        """Pages with at least one owner."""
        return self.num_pages - self._num_free

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold together, the most that one sequence can have in pages."""
        return self.num_pages * self.layout.page_size

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, whether touched or not."""
        return self.num_pages * self.layout.page_bytes

    def alloc(self, n: int) -> list[int] | None:
        """Take ``n`` free pages, each with a count of 1; None, nothing changed, if too few."""
        if n > self._num_free:
            return None
        start = self._num_free - n
        pages = self._free[start : self._num_free].tolist()
        pages.reverse()
        for page in pages:
            self._counts[page] = 1
        self._num_free = start
        self.peak_used = max(self.peak_used, self.num_pages - start)
        return pages

    def retain(self, pages: Sequence[int]) -> None:
        """Add an owner to each of ``pages``. PageError, nothing changed, if one of them is free."""
        counts = self._counts
        for page in pages:
            if page < 0 or page >= self.num_pages or counts[page] == 0:
                self.count(page)
                raise PageError(f"page {page} is free: it cannot be shared")
        for page in pages:
            counts[page] += 1

    def release(self, pages: Sequence[int]) -> list[int]:
        """Remove an owner from each of ``pages``; returns those that became free.

        A page may be named twice if it has two owners. PageError, nothing changed, if a count
        would go below 0.
        """
        counts = self._counts
        freed: list[int] = []
        for done, page in enumerate(pages):
            left = (counts[page] if 0 <= page < self.num_pages else self.count(page)) - 1
            if left > 0:
                counts[page] = left
            elif left == 0:
                counts[page] = 0
                freed.append(page)
            else:
                for undone in pages[:done]:
                    counts[undone] += 1
                raise PageError(f"page {page} was released more often than taken")
        for page in reversed(freed):  # so that alloc returns them in the same order
            self._free[self._num_free] = page
            self._num_free += 1
        return freed

    def count(self, page: int) -> int:
        """Owners of ``page``; 0 if it is free. PageError if the pool has no such page."""
        if not 0 <= page < self.num_pages:
            raise PageError(f"page {page} is not one of the pool's {self.num_pages}")
        return self._counts[page]

    @property
    def counts_by_page(self) -> Sequence[int]:
        """The number of owners of each page; read only."""
        return self._counts

    @property
    def counts(self) -> npt.NDArray[np.int32]:
        """int32[num_pages]: the same, as an array."""
        return self._all_counts

    def num_lone(self, pages: Sequence[int]) -> int:
        """How many of ``pages`` have exactly one owner."""
        counts = self._counts
        return sum(counts[page] == 1 for page in pages)

    def page(self, page: int) -> memoryview:
        """The bytes of ``page``: writable and contiguous, so that a transfer is one copy."""
        self.count(page)
        return memoryview(self.data[page])

    def export_page(self, page: int) -> bytes:
        """A copy of what ``page`` holds: ``layout.page_bytes`` bytes."""
        return bytes(self.page(page))

    def import_page(self, page: int, exported: bytes | memoryview) -> None:
        """Let ``page``, which somebody owns, hold what :meth:`export_page` gave.

        The pool that exported it must have an equal layout. PageError where the page is free or
        the number of bytes is not that of a page.
        """
        if not self.count(page):
            raise PageError(f"page {page} is free: nothing can be imported into it")
        if len(exported) != self.layout.page_bytes:
            raise PageError(
                f"{len(exported)} bytes are no page: one has {self.layout.page_bytes} bytes"
            )
        self.page(page)[:] = exported

    def check(self, owners: Iterable[Sequence[int]] | None = None) -> None:
        """Raise PageError unless the conservation law holds.

        With ``owners``, the list of pages of every owner, also check that the count of each page is
        the number of its owners.
        """
        counts = np.array(self._counts)
        free = np.array(self._free[: self._num_free])
        if len(np.unique(free)) != len(free):
            raise PageError("a page lies in the free list twice")
        if counts.min() < 0 or (counts[free] != 0).any():
            raise PageError("a free page has owners")
        if int((counts == 0).sum()) != self._num_free:
            raise PageError("a page without owners is not in the free list")
        if owners is not None:
            owned = np.zeros_like(counts)
            for pages in owners:
                np.add.at(owned, np.asarray(pages, dtype=np.int64), 1)
            if (owned != counts).any():
                page = int((owned != counts).argmax())
                raise PageError(
                    f"page {page} has a count of {counts[page]} and {owned[page]} owners"
                )

    def close(self) -> None:
        """Drop the mapping; the system gets it back once no array refers to it."""
        self.data = np.empty((0, self.layout.page_bytes), dtype=np.uint8)
        self.num_pages = self._num_free = 0


def pages_within(layout: KVLayout, nbytes: int) -> int:
    """The most pages that fit into ``nbytes`` bytes. ConfigError if not even one does."""
    num_pages = nbytes // layout.page_bytes
    if num_pages < 1:
        raise ConfigError(
            f"a KV cache of {format_size(nbytes)} holds no page: one takes "
            f"{format_size(layout.page_bytes)} ({layout.page_size} tokens of "
            f"{format_size(layout.bytes_per_token)}); raise --kv-cache-memory"
        )
    return num_pages


def _map_aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """uint8[nbytes] of zeros at a multiple of 2 MiB, not touched yet, with huge pages advised."""
    try:
        mapping = mmap.mmap(
            -1,
            nbytes + _HUGE_PAGE,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the system refuses a KV cache of {format_size(nbytes)} ({error}); "
            "lower --kv-cache-memory"
        ) from None
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return whole[start : start + nbytes]
