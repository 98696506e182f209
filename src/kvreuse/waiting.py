"""Who waits for admission, in which order, and who waits for the pages of another."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from kvreuse.request import Request

HEAD_START = 32
"""Arrivals that a request may be served before its time if its whole prompt is in the cache."""


class WaitingQueue:
    """Requests without pages, in turn; those that follow a leader stand apart.

    A request's *turn* is the number of its arrival, less a head start in proportion to the work
    that the cache saves it. So reuse comes first, while pages are warm, and yet every wait is
    bounded: a request is overtaken only by ones that arrive fewer than ``HEAD_START`` after it.

    A *follower* needs pages that a running request, its leader, is about to write. It comes back
    to the queue, in its turn, when they are written or the leader has gone.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Request]] = []  # (turn, arrival, request), ascending
        self._followers: dict[Request, list[tuple[int, Request]]] = {}  # by leader
        self._num_followers = 0

    def __len__(self) -> int:
        """All that wait, followers too."""
        return len(self._queue) + self._num_followers

    def __iter__(self) -> Iterator[Request]:
        """Those that may be admitted, in turn."""
        return (request for _, _, request in self._queue)

    @property
    def num_followers(self) -> int:
        """Those that wait for pages of a leader."""
        return self._num_followers

    def add(self, request: Request, saved: int) -> None:
        """Queue ``request``, of whose tokens ``saved`` are in the cache."""
        request.turn = request.arrival - HEAD_START * saved // request.num_tokens
        bisect.insort(self._queue, (request.turn, request.arrival, request))

    def remove(self, request: Request) -> None:
        """Take ``request`` out, wherever it waits. KeyError if it does not wait."""
        entry = (request.turn, request.arrival, request)
        index = bisect.bisect_left(self._queue, entry)
        if index < len(self._queue) and self._queue[index][2] is request:
            del self._queue[index]
            return
        for leader, followers in self._followers.items():
            left = [follower for follower in followers if follower[1] is not request]
            if len(left) < len(followers):
                self._set_followers(leader, left)
                return
        raise KeyError(request.request_id)

    def follow(self, request: Request, leader: Request, tokens: int) -> None:
        """Set ``request`` apart until ``leader`` has computed ``tokens`` tokens, or has gone."""
        self.remove(request)
        self._set_followers(leader, [*self._followers.get(leader, ()), (tokens, request)])

    def release(self, leader: Request, computed: int | None = None) -> None:
        """Queue the followers that wait for no more than ``computed`` tokens; None: all of them."""
        followers = self._followers.get(leader)
        if followers is None:
            return
        waiting = [] if computed is None else [f for f in followers if f[0] > computed]
        for tokens, request in followers:
            if computed is None or tokens <= computed:
                bisect.insort(self._queue, (request.turn, request.arrival, request))
        self._set_followers(leader, waiting)

    def _set_followers(self, leader: Request, followers: list[tuple[int, Request]]) -> None:
        self._num_followers += len(followers) - len(self._followers.pop(leader, ()))
        if followers:
            self._followers[leader] = followers
