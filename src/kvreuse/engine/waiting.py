"""WaitingQueue: the requests that wait for admission, in the order of admission."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from kvreuse.engine.request import Request

HEAD_START = 32
"""Arrivals by which a request moves forward if its whole prompt is in the cache."""
PRIORITY_STEP = 32
"""Arrivals by which each level of priority moves a request: below 0 forward, above 0 back."""
MAX_PRIORITY = 16
"""Priorities are clipped to -MAX_PRIORITY ... MAX_PRIORITY."""


class WaitingQueue:
    """Requests without pages, by ascending *turn*.

    A request's turn is the number of its arrival, plus ``PRIORITY_STEP`` for each level of its
    priority, less ``HEAD_START`` times the share of its tokens that the cache has. Every wait is
    bounded: at equal priority a request is overtaken only by requests that arrive fewer than
    ``HEAD_START`` after it; each level of priority adds ``PRIORITY_STEP`` arrivals to that.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Request]] = []  # (turn, arrival, request), ascending

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        """The requests, by ascending turn."""
        return (request for _, _, request in self._queue)

    def add(self, request: Request, saved: int) -> None:
        """Queue ``request``; the cache has ``saved`` of its tokens."""
        level = max(-MAX_PRIORITY, min(request.ask.retention.priority, MAX_PRIORITY))
        head_start = HEAD_START * saved // request.num_tokens
        request.turn = request.arrival + PRIORITY_STEP * level - head_start
        bisect.insort(self._queue, (request.turn, request.arrival, request))

    def remove(self, request: Request) -> None:
        """Remove ``request``, which must be in the queue."""
        index = bisect.bisect_left(self._queue, (request.turn, request.arrival, request))
        assert self._queue[index][2] is request
        del self._queue[index]
