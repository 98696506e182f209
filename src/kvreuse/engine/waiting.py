"""Who waits for admission, and in which order."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from kvreuse.engine.request import Request

HEAD_START = 32
"""Arrivals that a request may be served before its time if its whole prompt is in the cache."""
PRIORITY_STEP = 32
"""Arrivals by which each level of priority moves a request, forward or back."""
MAX_PRIORITY = 16
"""Levels that count, either way: what lies beyond is as good as this."""


class WaitingQueue:
    """Requests without pages, in turn.

    A request's *turn* is the number of its arrival, less a head start in proportion to the work
    that the cache saves it, plus its priority's share. So the important and the warm come first,
    and yet every wait is bounded: a request is overtaken only by ones that arrive fewer than
    ``HEAD_START`` after it, and ``PRIORITY_STEP`` more for each level that they are above it.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Request]] = []  # (turn, arrival, request), ascending

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        """In turn."""
        return (request for _, _, request in self._queue)

    def add(self, request: Request, saved: int) -> None:
        """Queue ``request``, of whose tokens ``saved`` are in the cache."""
        level = max(-MAX_PRIORITY, min(request.ask.retention.priority, MAX_PRIORITY))
        head_start = HEAD_START * saved // request.num_tokens
        request.turn = request.arrival + PRIORITY_STEP * level - head_start
        bisect.insort(self._queue, (request.turn, request.arrival, request))

    def remove(self, request: Request) -> None:
        """Take ``request``, which waits, out."""
        index = bisect.bisect_left(self._queue, (request.turn, request.arrival, request))
        assert self._queue[index][2] is request
        del self._queue[index]
