"""Retention: what a request asks for its pages once it has ended."""

from __future__ import annotations

import dataclasses
import math

from kvreuse.errors import RequestError

PIN_SHARE = 0.5
"""The share of the pool's pages that may be pinned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Retention:
    """How long the pages of a request are to stay, and before whom it is served.

    None of it changes an answer. RequestError for a value that is out of range.
    """

    pin: bool = False
    """The full pages of the prompt are not evicted, until ``ttl`` is over or a request that starts
    with them ends its session. At most half of the pool can be pinned."""
    ttl: float | None = None
    """Seconds after the request's end when its own pages become the first to go, unless another
    request has used them since; a pin ends then, too. None: no such moment."""
    priority: int = 0
    """Lower values are served first, and their pages outlast those of higher ones."""
    session_end: bool = False
    """Nobody will go on from here: the request's own pages, those that lead nowhere else, are the
    first to go once it has ended."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("pin", "session_end"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise RequestError(f"priority must be an integer, got {self.priority!r}")
        if self.ttl is None:
            return
        number = isinstance(self.ttl, (int, float)) and not isinstance(self.ttl, bool)
        if not number or not 0 < self.ttl < math.inf:
            raise RequestError(f"ttl must be a number of seconds above 0, got {self.ttl!r}")


DEFAULT_RETENTION = Retention()


class Promises:
    """Pins, and moments at which pages are to go. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self.pinned: dict[int, float] = {}
        """Pinned pages, and until when."""
        self._ends: dict[int, tuple[float, int]] = {}  # by page: when, and its stamp by then
        self._next = math.inf  # nothing is over before

    def pin(self, pages: list[int], until: float) -> list[int]:
        """Pin ``pages``; returns those that were not pinned already."""
        new = [page for page in pages if page not in self.pinned]
        for page in pages:
            self.pinned[page] = max(until, self.pinned.get(page, 0.0))
        self._next = min(self._next, until)
        return new

    def unpin(self, pages: list[int]) -> list[int]:
        """Let go of ``pages``; returns those that were pinned."""
        return [page for page in pages if self.pinned.pop(page, None) is not None]

    def end_at(self, when: float, page: int, stamp: int) -> None:
        """The pages that lead to ``page`` are to go at ``when`` unless used after ``stamp``."""
        self._ends[page] = when, stamp
        self._next = min(self._next, when)

    def expired(self, now: float) -> tuple[list[int], list[tuple[int, int]]]:
        """What is over: pages that are pinned no longer, and the (page, stamp) of those to go."""
        if now < self._next:
            return [], []
        unpinned = [page for page, until in self.pinned.items() if until <= now]
        self.unpin(unpinned)
        ended = [(page, stamp) for page, (when, stamp) in self._ends.items() if when <= now]
        for page, _ in ended:
            del self._ends[page]
        moments = [*self.pinned.values(), *(when for when, _ in self._ends.values())]
        self._next = min(moments, default=math.inf)
        return unpinned, ended
