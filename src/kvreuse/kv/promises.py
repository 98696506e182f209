"""Promises: pinned pages, and the times at which pins and sessions end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence, Set

import numpy as np

from kvreuse.api.retention import Retention
from kvreuse.errors import RequestError
from kvreuse.kv.evict.evictor import Evictor, Pages
from kvreuse.kv.keys import Tokens, token_bytes
from kvreuse.kv.pool import PagePool
from kvreuse.kv.prefix import PrefixIndex

PIN_SHARE = 0.5
"""The share of the pool's pages that may be pinned."""


class Promises:
    """What :class:`Retention` promises for resident pages. A pin is an owner of its pages.

    If a page is pinned, all pages before it are pinned at least as long: so every page that only
    the index owns can be evicted. Times are seconds of one clock.
    """

    def __init__(
        self,
        pool: PagePool,
        index: PrefixIndex,
        evictor: Evictor,
        drop: Callable[[Pages], None],
    ) -> None:
        """``drop`` removes an owner from pages."""
        self.pinned: dict[int, float] = {}
        """The time until which each pinned page is pinned."""
        self._pool = pool
        self._index = index
        self._evictor = evictor
        self._drop = drop
        self._ends: dict[int, tuple[float, int]] = {}  # by page: (time, stamp when set)
        self._next = math.inf  # nothing expires before this time

    @property
    def quota(self) -> int:
        """The most pages that may be pinned."""
        return int(self._pool.num_pages * PIN_SHARE)

    def make(self, path: Sequence[int], retention: Retention, num_pinned: int, now: float) -> None:
        """Apply ``retention`` to ``path``, the pages of a sequence that ends but still owns them.

        A pin covers the first ``num_pinned`` pages.
        """
        if retention.session_end:
            self._unpin_from(path)
            return
        until = math.inf if retention.ttl is None else now + retention.ttl
        pinned = list(path[:num_pinned]) if retention.pin else []
        self._pool.retain([page for page in pinned if page not in self.pinned])
        for page in pinned:
            self.pinned[page] = max(until, self.pinned.get(page, 0.0))
        if retention.ttl is not None:
            self._end_at(until, path[-1])
            if pinned:
                self._end_at(self.pinned[pinned[-1]], pinned[-1])

    def give_up(self, n: int) -> bool:
        """Unpin up to ``n`` pages, those pinned last first; returns whether there were any."""
        pages = list(self.pinned)[-n:]  # a page is pinned after those before it
        self._unpin(pages[::-1])
        return bool(pages)

    def end(self, page: int) -> None:
        """The session whose last page is ``page`` has ended now."""
        self._evictor.end(page, self._evictor.stamp(page), self._pool.counts_by_page)

    def expire(self, now: float | None = None) -> None:
        """Remove pins, and end sessions, whose time is over; ``now`` is time.monotonic()."""
        now = time.monotonic() if now is None else now
        if now < self._next:
            return
        over = [page for page, until in self.pinned.items() if until <= now]
        self._unpin(over[::-1])
        for page, (when, stamp) in list(self._ends.items()):
            if when <= now:
                del self._ends[page]
                self._evictor.end(page, stamp, self._pool.counts_by_page)
        moments = [*self.pinned.values(), *(when for when, _ in self._ends.values())]
        self._next = min(moments, default=math.inf)

    def check_pin(
        self, ids: Tokens, salt: str | None, promised: Set[int] = frozenset()
    ) -> frozenset[int]:
        """The names of the full pages of ``ids``; RequestError if pinning them exceeds the quota.

        ``promised`` are the names of pages that will be pinned when other requests end.
        """
        names = frozenset(self._index.names_of(salt, token_bytes(ids)))
        taken_names = {self._index.names[page] for page in self.pinned} | promised
        needed, taken = len(names - taken_names), len(taken_names)
        if needed and needed + taken > self.quota:
            raise RequestError(
                f"pinning the prompt takes {needed} pages of {self._pool.layout.page_size} tokens, "
                f"but of the {self.quota} that can be pinned (half of the KV cache's "
                f"{self._pool.num_pages}) {taken} are taken: pin less, give pins a ttl, or raise "
                "--kv-cache-memory"
            )
        return names

    def _end_at(self, when: float, page: int) -> None:
        """End the session of ``page`` at the time ``when``, unless a request uses it before."""
        if when < math.inf:
            self._ends[page] = when, self._evictor.stamp(page)
            self._next = min(self._next, when)

    def _unpin_from(self, path: Sequence[int]) -> None:
        """Unpin ``path`` from its end back to a page that another pinned prompt shares."""
        for page in reversed([page for page in path if page in self.pinned]):
            if any(child in self.pinned for child in self._index.children(page)):
                break
            self._unpin([page])

    def _unpin(self, pages: list[int]) -> None:
        for page in pages:
            del self.pinned[page]
            self._drop(np.array([page], dtype=np.int32))
