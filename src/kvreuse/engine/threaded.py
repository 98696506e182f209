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
    """``async for`` streams over an :class:`Engine`, which nobody else may use meanwhile.

    ::

        async with AsyncEngine(llm.engine) as engine:
            async for delta in engine.stream(Ask(prompt_ids, params)):
                print(delta.text, end="")

    Enter it on a running event loop, and use it on that one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_step: Callable[[Sequence[Delta]], None] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """``on_step`` sees the deltas of every step, in the engine's thread, and must be quick.

        ``on_end`` gets what there is of every request that ends, also one that was aborted or
        failed, on the event loop: after ``on_step`` has seen its last delta, and before its reader
        gets it.
        """
        self._engine = engine
        self._on_step, self._on_end = on_step, on_end
        self._thread = EngineThread(engine, always=True, on_step=self._stepped, on_end=self._ended)
        # The thread's, until they go to the loop.
        self._over: list[RequestOutput] = []
        self._post: list[tuple[_Inbox, Delta]] = []

    async def __aenter__(self) -> AsyncEngine:
        """Start the thread, the only one that may use the engine from now on."""
        self._loop = asyncio.get_running_loop()
        await self.call(self._claim)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort what is being served, let the step under way end, stop the thread."""
        self._thread.stop()
        await self._loop.run_in_executor(None, self._thread.join)
        self._engine.turn.owner = None

    @property
    def stalled(self) -> float:
        """Seconds since the thread last began a step, while it has something to do; else 0."""
        return self._thread.stalled

    @property
    def alive(self) -> bool:
        """Whether the thread takes orders."""
        return self._thread.alive

    async def stream(self, ask: Ask) -> AsyncGenerator[Delta, None]:
        """The deltas of one request as they come; the last one has the result as ``output``.

        RequestError for a request that can never be served, EngineClosedError where the engine has
        ended. A stream that is closed or cancelled before its end aborts its request.
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
        """The result of one request, without what a stream costs; else as :meth:`stream`."""
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
        """End requests; each stream gets a last delta with what there is of its answer."""

        def abort() -> None:
            for request_id in request_ids:
                self._thread.abort(request_id)
            self._deliver()

        await self.call(abort)

    async def call(self, function: Callable[[], T]) -> T:
        """Have the thread call something between two steps; its result, or what it raised.

        The only way to look at the engine's cache. EngineClosedError where the engine has ended.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def obey() -> None:
            try:
                result = function()
            except BaseException as error:  # raised again by who waits
                self._tell(_settle, future, None, error)
            else:
                self._tell(_settle, future, result, None)

        self._thread.order(obey)
        return await future

    def _claim(self) -> None:
        self._engine.turn.claim()

    def _drop(self, inbox: _Inbox) -> None:
        """Nobody reads ``inbox`` any more."""

        def drop() -> None:
            if inbox.request_id is not None:
                self._thread.drop(inbox.request_id, inbox)
                self._deliver()

        with contextlib.suppress(EngineClosedError):
            self._thread.order(drop)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something on the event loop, from the thread."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def _stepped(self, deltas: Sequence[Delta]) -> None:
        if self._on_step is not None:
            self._on_step(deltas)
        self._deliver()

    def _deliver(self) -> None:
        """Have the loop put what there is for its readers where they wait for it."""
        if self._over or self._post:
            self._tell(self._put_all, self._over, self._post)
            self._over, self._post = [], []

    def _put_all(self, over: Sequence[RequestOutput], post: Sequence[tuple[_Inbox, Delta]]) -> None:
        """On the loop."""
        for output in over:
            if self._on_end is not None:
                self._on_end(output)
        for inbox, delta in post:
            inbox.items.put_nowait(delta)

    def _ended(self, output: RequestOutput) -> None:
        self._over.append(output)


class _Inbox:
    """The deltas of one request, or the error that ended it, for who reads them on the loop."""

    def __init__(self, engine: AsyncEngine, *, last_only: bool) -> None:
        """``last_only``: nobody wants but the delta with the result."""
        self.items: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self.request_id: str | None = None
        """None: its request has not been taken on."""
        self._engine = engine
        self._last_only = last_only

    def submit(self, ask: Ask) -> None:
        """Queue ``ask``; on the thread."""
        self.request_id = self._engine._thread.submit(ask, self)

    def put(self, item: Delta | Exception) -> None:
        """On the thread: deltas of a step go to the loop together."""
        if isinstance(item, Exception):
            self._engine._deliver()
            self._engine._tell(self.items.put_nowait, item)
        elif item.finished or not self._last_only:
            self._engine._post.append((self, item))


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Give the one who waits for ``future``, if somebody still does, its result."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None only where T has it
