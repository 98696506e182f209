"""Answers over HTTP, for every dialect: a body in, a whole reply or a stream out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.api.outputs import RequestOutput
from kvreuse.errors import KVReuseError
from kvreuse.server import reuse
from kvreuse.server.body import receive
from kvreuse.server.dialects.dialect import B, Dialect
from kvreuse.server.disconnect import while_connected
from kvreuse.server.errors import as_api_error
from kvreuse.server.merge import merged
from kvreuse.server.service import Service, weight
from kvreuse.server.stream import stream_response


def handler(kind: type[Dialect[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """The route of a dialect."""

    async def handle(request: Request) -> Response:
        service: Service = request.app.state.service
        dialect = kind(service.served)
        try:
            return await _answer(request, service, dialect)
        except KVReuseError as error:
            told = as_api_error(error)
            return JSONResponse(dialect.error(told), told.status, told.headers)

    return handle


async def _answer(request: Request, service: Service, dialect: Dialect[B]) -> Response:
    asked, size = await receive(request, service, dialect.body)
    exchange = await service.prepare(
        size, lambda: Exchange(service, dialect, asked), form=dialect.compiles(asked)
    )
    if not dialect.streams(asked):
        return await exchange.whole(request)
    return await stream_response(
        request,
        exchange.events(),
        media_type=dialect.framing.media_type,
        headers=exchange.headers,
        last_words=lambda error: dialect.framing.write(dialect.error(error)),
    )


class Exchange:
    """One request on its way: what it asks of the engine, and the reply that this becomes."""

    def __init__(self, service: Service, dialect: Dialect[B], asked: B) -> None:
        """RequestError or APIError where it cannot be served."""
        self.headers: dict[str, str] = {}
        """Headers of the reply; complete with its first event."""
        self._service = service
        self._framing = dialect.framing
        self._asks = [service.inputs.check(ask) for ask in dialect.asks(asked)]
        self._reply = dialect.reply(asked, self._asks)
        self._seats = sum(ask.params.n for ask in self._asks)

    async def whole(self, request: Request) -> Response:
        """The whole reply, once there is one."""
        with self._service.seats.take(self._seats):
            outputs = await while_connected(request, self._outputs())
        header = reuse.header([reuse.Found.of(output) for output in outputs])
        return await self._service.prepare(
            weight(outputs),
            lambda: JSONResponse(self._reply.whole(outputs), headers={reuse.HEADER: header}),
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream."""
        write, origin = self._framing.write, self._reply.origin
        outputs: dict[int, RequestOutput] = {}
        with self._service.seats.take(self._seats):
            streams = [self._service.stream(ask, origin) for ask in self._asks]
            async with aclosing(merged(streams)) as deltas:
                async for at, delta in deltas:
                    if delta.num_cached_tokens is not None:
                        length = len(self._asks[at].token_ids)
                        found = reuse.Found(length, delta.num_cached_tokens, delta.miss)
                        self.headers[reuse.HEADER] = reuse.header([found])
                    if delta.output is not None:
                        outputs[at] = delta.output
                    if events := self._reply.push(at, delta):
                        yield b"".join(map(write, events))
            if rest := await self._ended([outputs[at] for at in sorted(outputs)]):
                yield rest
        if self._framing.end:
            yield self._framing.end

    async def _ended(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The events after the last delta."""
        write = self._framing.write
        return await self._service.prepare(
            weight(outputs), lambda: b"".join(map(write, self._reply.end(outputs)))
        )

    async def _outputs(self) -> list[RequestOutput]:
        """The results, in the order of the prompts; where one fails the others are aborted."""
        origin = self._reply.origin
        tasks = [asyncio.create_task(self._service.answer(ask, origin)) for ask in self._asks]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
