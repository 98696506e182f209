"""Streams: an error before the first event has a status of its own, a later one is an event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from kvreuse.errors import KVReuseError
from kvreuse.server.disconnect import EventStream, while_connected
from kvreuse.server.errors import APIError, as_api_error

logger = logging.getLogger("kvreuse.server")


async def stream_response(
    request: Request,
    events: AsyncGenerator[bytes, None],
    *,
    media_type: str,
    headers: Mapping[str, str],
    last_words: Callable[[APIError], bytes],
) -> Response:
    """The reply, once there is a first event.

    ``headers`` are read after the first event. ``last_words`` writes an error that comes later, as
    the last event.
    """
    guard = _guarded(events, last_words)
    try:
        first = await while_connected(request, _next(guard))
    except BaseException:
        await guard.aclose()
        raise
    return EventStream(first, guard, media_type, headers)


async def _guarded(
    events: AsyncGenerator[bytes, None], last_words: Callable[[APIError], bytes]
) -> AsyncGenerator[bytes, None]:
    """``events``, where an error after the first one becomes the last one."""
    begun = False
    try:
        async for one in events:
            yield one
            begun = True
    except Exception as error:
        if not begun:
            raise
        if not isinstance(error, KVReuseError):
            logger.exception("a stream failed")
        yield last_words(as_api_error(error))
    finally:
        await events.aclose()


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
