"""Inbox: where the deltas of one request wait on the event loop for who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from kvreuse.api.outputs import Delta

T = TypeVar("T")


class Inbox(asyncio.Queue[Delta | BaseException]):
    """A queue of deltas, or of the error that ended the request."""

    def __init__(self, *, last_only: bool = False) -> None:
        """``last_only``: nobody wants but the delta with the result."""
        super().__init__()
        self.last_only = last_only
        self.request_id: str | None = None
        """None: its request has not been taken on."""


def settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Give the one who waits for ``future``, if somebody still does, its result."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None only where T has it


def deliver(deltas: Sequence[tuple[Inbox, Delta]]) -> None:
    """Put the deltas of a step where they are waited for."""
    for inbox, delta in deltas:
        inbox.put_nowait(delta)
