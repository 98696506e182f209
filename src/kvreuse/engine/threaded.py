"""AsyncEngine: an engine in a thread of its own, for programs on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.engine import Engine
from kvreuse.engine.thread import EngineThread
from kvreuse.errors import EngineClosedError

T = TypeVar("T")


class AsyncEngine:
    """``async for`` streams over an :class:`Engine`, which no other caller may use meanwhile.

    ::

        async with AsyncEngine(llm.engine) as engine:
            async for delta in engine.stream(Ask(prompt_ids, params)):
                print(delta.text, end="")

    Enter it on a running event loop, and use it on that loop only.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_step: Callable[[Sequence[Delta]], None] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """``on_step`` gets the deltas of every step, on the engine's thread, and must be quick.

        ``on_end`` gets what there is of every request that ends, also one that was aborted or
        failed, on the event loop: after ``on_step`` has seen its last delta, and before its reader
        gets it.
        """
        self._on_end = on_end
        self._thread = EngineThread(
            engine, always=True, on_step=on_step, on_put=self._deliver, on_end=self._ended
        )
        self._post: list[tuple[_Inbox, Delta]] = []  # the thread's: of a step, for the loop

    async def __aenter__(self) -> AsyncEngine:
        """Start the thread. While it serves requests, no other may use the engine."""
        self._loop = asyncio.get_running_loop()
        await self.call(lambda: None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the thread after the step under way; abort the requests that have not ended."""
        self._thread.stop()
        await self._loop.run_in_executor(None, self._thread.join)

    @property
    def stalled(self) -> float:
        """Seconds since the thread last began a step or took an order; 0 if it has no work."""
        return self._thread.stalled

    @property
    def alive(self) -> bool:
        """Whether the thread accepts orders."""
        return self._thread.alive

    async def stream(self, ask: Ask) -> AsyncGenerator[Delta, None]:
        """The deltas of one request as they come; the last one has the result as ``output``.

        RequestError for a request that can never be served, EngineClosedError if the engine has
        ended. Closing or cancelling the stream before its end aborts the request.
        """
        inbox = _Inbox(self, last_only=False)
        finished = False
        try:
            await self.call(lambda: inbox.submit(ask))
            while not finished:
                item = await inbox.items.get()
                finished = isinstance(item, Exception) or item.finished
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not finished:
                self._drop(inbox)

    async def answer(self, ask: Ask) -> RequestOutput:
        """The result of one request, as :meth:`stream` but without a wake-up for every delta."""
        inbox = _Inbox(self, last_only=True)
        finished = False
        try:
            await self.call(lambda: inbox.submit(ask))
            item = await inbox.items.get()
            finished = True
            if isinstance(item, Exception):
                raise item
            assert item.output is not None
            return item.output
        finally:
            if not finished:
                self._drop(inbox)

    async def abort(self, *request_ids: str) -> None:
        """End requests; each stream gets a last delta with its partial result."""

        def abort() -> None:
            for request_id in request_ids:
                self._thread.abort(request_id)
            self._deliver()

        await self.call(abort)

    async def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the thread between two steps; return or raise what it does.

        The only way to read the engine's cache. EngineClosedError if the engine has ended.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:  # raised again on the event loop
                self._tell(_settle, future, None, error)
            else:
                self._tell(_settle, future, result, None)

        self._thread.order(run)
        return await future

    def _drop(self, inbox: _Inbox) -> None:
        """Abort the request of ``inbox``, which is no longer read."""

        def drop() -> None:
            if inbox.request_id is not None:
                self._thread.drop(inbox.request_id, inbox)

        with contextlib.suppress(EngineClosedError):
            self._thread.order(drop)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule ``call`` on the event loop, from the thread."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def _deliver(self) -> None:
        """Hand the posted deltas to the event loop, which puts them into their inboxes."""
        if self._post:
            self._tell(_put_all, self._post)
            self._post = []

    def _ended(self, output: RequestOutput) -> None:
        if self._on_end is not None:
            self._tell(self._on_end, output)


class _Inbox:
    """The deltas of one request, or the error that ended it, for its reader on the event loop."""

    def __init__(self, engine: AsyncEngine, *, last_only: bool) -> None:
        """``last_only``: keep only the delta with the result."""
        self.items: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self.request_id: str | None = None
        """None until the engine has accepted the request."""
        self._engine = engine
        self._last_only = last_only

    def submit(self, ask: Ask) -> None:
        """Queue ``ask``; on the thread."""
        self.request_id = self._engine._thread.submit(ask, self)

    def put(self, item: Delta | Exception) -> None:
        """Called on the thread. Deltas of one step go to the event loop together."""
        if isinstance(item, Exception):
            self._engine._deliver()
            self._engine._tell(self.items.put_nowait, item)
        elif item.finished or not self._last_only:
            self._engine._post.append((self, item))


def _put_all(post: Sequence[tuple[_Inbox, Delta]]) -> None:
    for inbox, delta in post:
        inbox.items.put_nowait(delta)


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Set the result or the error of ``future``, unless it was cancelled."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None only if T allows it
