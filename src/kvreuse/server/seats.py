"""Seats: how many answers may be under way and waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvreuse.server.errors import APIError, shutting_down


class Seats:
    """Room for a number of answers. Use it on the event loop."""

    def __init__(self, at_once: int, queue: int, finished: Callable[[], int]) -> None:
        """``at_once`` answers are served, ``queue`` more may wait; ``finished`` counts requests."""
        self.capacity = at_once + queue
        """Answers that may be under way and waiting."""
        self.taken = 0
        """Answers that are under way or waiting."""
        self.closed = False
        """Whether no more are taken, since the server shuts down."""
        self._at_once = at_once
        self._finished = finished
        self._start = time.monotonic()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def take(self, answers: int) -> Iterator[None]:
        """Room for so many answers. APIError where there is none now, or never will be."""
        if self.closed:
            raise shutting_down()
        if answers > self.capacity:
            message = f"{answers} answers at once: this server takes {self.capacity} at most"
            raise APIError(400, message, code="invalid_value", param="n")
        if self.taken + answers > self.capacity:
            wait = str(self._wait())
            message = f"{self.taken} answers are under way: try again in {wait} s or so"
            raise APIError(429, message, code="overloaded", headers={"retry-after": wait})
        self.taken += answers
        self._empty.clear()
        try:
            yield
        finally:
            self.taken -= answers
            if not self.taken:
                self._empty.set()

    async def empty(self) -> None:
        """Wait until no answer is under way."""
        await self._empty.wait()

    def _wait(self) -> int:
        """An estimate of the seconds until there is room, from the rate of requests so far."""
        rate = self._finished() / max(time.monotonic() - self._start, 1e-3)
        excess = max(1, self.taken - self._at_once)
        return max(1, min(60, round(excess / rate) if rate else 1))
