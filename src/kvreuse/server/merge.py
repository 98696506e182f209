"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """The items of ``streams``, each with its stream's position; the first failure ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
    else:
        async with aclosing(_together(streams)) as together:
            async for pair in together:
                yield pair


async def _together(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(1)

    async def pump(at: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async for item in stream:
                await queue.put((at, item))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(at, stream)) for at, stream in enumerate(streams)]
    try:
        ended = 0
        while ended < len(tasks):
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                ended += 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
