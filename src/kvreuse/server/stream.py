"""Events of a stream: one JSON object each, and ``[DONE]`` at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvreuse.server.disconnect import EventStream, while_connected
from kvreuse.server.errors import APIError

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One event."""
    return (
        b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


async def guarded(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """``events``, where an error after the first one becomes the last one."""
    begun = False
    try:
        async for one in events:
            yield one
            begun = True
    except APIError as error:
        if not begun:
            raise
        yield event(error.body())
    finally:
        await events.aclose()


async def stream_response(
    request: Request, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> Response:
    """The reply, once there is a first event: until then an error has a status of its own.

    ``headers`` are read after the first event.
    """
    guard = guarded(events)
    try:
        first = await while_connected(request, _next(guard))
    except BaseException:
        await guard.aclose()
        raise
    return EventStream(first, guard, headers)


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
