"""AsyncEngine: an engine in a thread of its own, for programs on an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.engine import Engine
from kvreuse.errors import EngineClosedError

T = TypeVar("T")
OnStep = Callable[[Sequence[Delta]], None]
OnEnd = Callable[[RequestOutput], None]


class Inbox(asyncio.Queue["Delta | BaseException"]):
    """The deltas of one request, or the error that ended it, for who reads them on the loop."""

    def __init__(self, *, last_only: bool = False) -> None:
        """``last_only``: nobody wants but the delta with the result."""
        super().__init__()
        self.last_only = last_only
        self.request_id: str | None = None
        """None: its request has not been taken on."""


class AsyncEngine:
    """``async for`` streams over an :class:`Engine`, which nobody else may use meanwhile.

    ::

        async with AsyncEngine(llm.engine) as engine:
            async for delta in engine.stream(Ask(prompt_ids, params)):
                print(delta.text, end="")

    The engine's thread takes orders between steps and sleeps where there is nothing to do. Enter it
    on a running event loop, and use it on that one.

    Where a step fails, the requests in it are served one by one until each has had its turn: only
    the one that fails by itself ends with the error.
    """

    def __init__(
        self, engine: Engine, *, on_step: OnStep | None = None, on_end: OnEnd | None = None
    ) -> None:
        """``on_step`` sees the deltas of every step, in the engine's thread, and must be quick.

        ``on_end`` gets what there is of every request that ends, also one that was aborted or
        failed, on the event loop: after ``on_step`` has seen its last delta, and before its reader
        gets it.
        """
        self._engine = engine
        self._on_step, self._on_end = on_step, on_end
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # What follows is the thread's, as the engine is.
        self._inboxes: dict[str, Inbox] = {}
        self._post: list[tuple[Inbox, Delta]] = []  # of the step, to be delivered on the loop
        self._suspects: set[str] = set()  # who has yet to be served alone
        self._closed = True
        self._gate = threading.Lock()  # of orders, so that none comes when the last was taken
        self._moved = time.monotonic()  # when a step or a rest began
        self._thread = threading.Thread(target=self._work, name="kvreuse engine", daemon=True)

    async def __aenter__(self) -> AsyncEngine:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._closed = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort what is being served, let the step under way end, stop the thread."""
        self._closed = True
        self._orders.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    @property
    def stalled(self) -> float:
        """Seconds since the thread last began a step, while it has something to do; else 0."""
        busy = self._engine.has_unfinished or not self._orders.empty()
        return time.monotonic() - self._moved if busy else 0.0

    @property
    def alive(self) -> bool:
        """Whether the thread takes orders."""
        return not self._closed

    async def stream(self, ask: Ask) -> AsyncGenerator[Delta, None]:
        """The deltas of one request as they come; the last one has the result as ``output``.

        RequestError for a request that can never be served, EngineClosedError where the engine has
        ended. A stream that is closed or cancelled before its end aborts its request.
        """
        inbox = Inbox()
        finished = False
        try:
            await self.call(lambda: self._submit(ask, inbox))
            while not finished:
                delta = await inbox.get()
                if isinstance(delta, BaseException):
                    finished = True
                    raise delta
                finished = delta.finished
                yield delta
        finally:
            if not finished:
                self._orders.put(lambda: self._drop(inbox))

    async def answer(self, ask: Ask) -> RequestOutput:
        """The result of one request, without what a stream costs; else as :meth:`stream`."""
        inbox = Inbox(last_only=True)
        finished = False
        try:
            await self.call(lambda: self._submit(ask, inbox))
            delta = await inbox.get()
            finished = True
            if isinstance(delta, BaseException):
                raise delta
            assert delta.output is not None
            return delta.output
        finally:
            if not finished:
                self._orders.put(lambda: self._drop(inbox))

    async def abort(self, *request_ids: str) -> None:
        """End requests; each stream gets a last delta with what there is of its answer."""

        def abort() -> None:
            for request_id in request_ids:
                self._abort(request_id)

        await self.call(abort)

    async def call(self, function: Callable[[], T]) -> T:
        """Have the thread call something between two steps; its result, or what it raised.

        The only way to look at the engine's cache. EngineClosedError where the engine has ended.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def obey() -> None:
            try:
                result = function()
            except BaseException as error:
                self._tell(_settle, future, None, error)
            else:
                self._tell(_settle, future, result, None)

        with self._gate:
            if self._closed:
                raise EngineClosedError
            self._orders.put(obey)
        return await future

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something on the event loop, from the thread."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def _work(self) -> None:
        """The thread: orders, then a step, again and again. Whatever ends it, nobody waits on."""
        try:
            while self._obey():
                self._moved = time.monotonic()
                self._step()
        finally:
            with self._gate:
                self._closed = True
            self._send()
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None:
                    order()
            self._fail(list(self._inboxes), EngineClosedError())

    def _obey(self) -> bool:
        """Carry out orders; wait for one where nothing is being served. False: it was the last."""
        while not (self._engine.has_unfinished and self._orders.empty()):
            order = self._orders.get()
            self._moved = time.monotonic()
            if order is None:
                return False
            order()
        return True

    def _step(self) -> None:
        try:
            deltas = self._engine.step(self._suspects)
        except Exception as error:
            self._blame(error)
            return
        if self._suspects:
            self._suspects.difference_update(self._engine.suspects)
        if self._on_step is not None:
            self._on_step(deltas)
        self._send()

    def _send(self) -> None:
        """Deliver the deltas of the step."""
        if self._post:
            self._tell(self._deliver, self._post)
            self._post = []

    def _deliver(self, deltas: Sequence[tuple[Inbox, Delta]]) -> None:
        """On the event loop: put deltas where they are waited for."""
        for inbox, delta in deltas:
            if delta.output is not None and self._on_end is not None:
                self._on_end(delta.output)
            inbox.put_nowait(delta)

    def _blame(self, error: Exception) -> None:
        """A step failed: end the request that it served, or serve them one by one."""
        names = self._engine.suspects
        if len(names) == 1:
            self._fail(names, error)
        elif names:
            self._suspects = set(names)
        else:
            self._fail(list(self._inboxes), error)

    def _submit(self, ask: Ask, inbox: Inbox) -> None:
        def sink(delta: Delta) -> None:
            if delta.output is not None:
                self._inboxes.pop(delta.request_id, None)
                self._suspects.discard(delta.request_id)
            if delta.output is not None or not inbox.last_only:
                self._post.append((inbox, delta))

        inbox.request_id = self._engine.submit(ask, sink).request_id
        self._inboxes[inbox.request_id] = inbox

    def _abort(self, request_id: str) -> None:
        inbox = self._inboxes.pop(request_id, None)
        output = self._remove(request_id)
        if output is not None and inbox is not None:
            self._tell(inbox.put_nowait, Delta(request_id, "", (), output))

    def _drop(self, inbox: Inbox) -> None:
        """Nobody reads ``inbox`` any more."""
        name = inbox.request_id
        if name is not None and self._inboxes.get(name) is inbox:
            del self._inboxes[name]
            self._remove(name)

    def _fail(self, request_ids: Sequence[str], error: Exception) -> None:
        """These cannot go on: tell them."""
        for request_id in request_ids:
            self._remove(request_id)
            inbox = self._inboxes.pop(request_id, None)
            if inbox is not None:
                self._tell(inbox.put_nowait, error)

    def _remove(self, request_id: str) -> RequestOutput | None:
        """Take a request out of the engine; what there is of it."""
        self._suspects.discard(request_id)
        output = self._engine.abort(request_id)
        if output is not None and self._on_end is not None:
            self._tell(self._on_end, output)
        return output


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Give the one who waits for ``future``, if somebody still does, its result."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None only where T has it
