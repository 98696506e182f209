"""Disconnects: the work for a client is cancelled when it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client has disconnected."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects. The body
    must have been read."""
    return await _first(work, request.receive)


class EventStream(Response):
    """A body in pieces: ``first``, then those of ``events``, until they or the client end."""

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        """``events`` is closed at the end, however the stream ends."""
        headers = {"cache-control": "no-cache", **headers}
        super().__init__(b"", headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; a client that goes away ends it."""
        try:
            await _first(self._send(send), receive)
        except (ClientGoneError, OSError):
            pass
        finally:
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_body(send, self._first)
        async with aclosing(self._events):
            async for event in self._events:
                await _send_body(send, event)
        await _send_body(send, b"", more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _first(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """``work``'s result; ClientGoneError, and ``work`` cancelled, if a disconnect comes first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
