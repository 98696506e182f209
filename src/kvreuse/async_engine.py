"""AsyncEngine: an engine in a thread of its own, for programs on an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any

from kvreuse.engine import Engine
from kvreuse.errors import RequestError
from kvreuse.kv.retention import DEFAULT_RETENTION, Retention
from kvreuse.outputs import Delta
from kvreuse.request import Int32Array
from kvreuse.sampling_params import SamplingParams

Inbox = asyncio.Queue[Delta | BaseException]


class AsyncEngine:
    """``async for`` streams over an :class:`Engine`, which nobody else may use meanwhile.

    ::

        async with AsyncEngine(llm.engine) as engine:
            async for delta in engine.stream(prompt_ids, params):
                print(delta.text, end="")

    The engine's thread takes orders between steps and sleeps where there is nothing to do. Enter it
    on a running event loop, and use it on that one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}  # of the thread, as the engine is
        self._closed = True
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

    async def stream(
        self,
        prompt_ids: Sequence[int] | Int32Array,
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
        cache_salt: str | None = None,
        retention: Retention = DEFAULT_RETENTION,
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of one request as they come; the last one has the result as ``output``.

        RequestError for a request that can never be served. A stream that is closed or cancelled
        before its end aborts its request.
        """
        inbox: Inbox = asyncio.Queue()

        def add() -> None:
            added = self._engine.add_request(
                prompt_ids,
                params,
                prompt=prompt,
                request_id=request_id,
                cache_salt=cache_salt,
                retention=retention,
            )
            self._inboxes[added] = inbox

        finished = False
        try:
            await self._order(add)
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

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last delta with what there is of the answer."""
        await self._order(lambda: self._abort(request_id))

    async def _order(self, call: Callable[[], Any]) -> Any:
        """Have the thread call something between two steps; its result, or what it raised."""
        if self._closed:
            raise RequestError("the engine is closed")
        future: asyncio.Future[Any] = self._loop.create_future()

        def obey() -> None:
            try:
                result = call()
            except BaseException as error:
                self._tell(_settle, future, None, error)
            else:
                self._tell(_settle, future, result, None)

        self._orders.put(obey)
        return await future

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something on the event loop, from the thread."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def _work(self) -> None:
        """The thread: orders, then a step, again and again."""
        while self._obey():
            self._step()
        self._fail(RequestError("the engine is closed"))

    def _step(self) -> None:
        try:
            deltas = self._engine.step()
        except BaseException as error:
            self._fail(error)
            return
        if deltas:
            self._tell(_deliver, [(self._inboxes[delta.request_id], delta) for delta in deltas])
        for delta in deltas:
            if delta.finished:
                del self._inboxes[delta.request_id]

    def _obey(self) -> bool:
        """Carry out orders; wait for one where nothing is being served. False: it was the last."""
        while not (self._engine.has_unfinished and self._orders.empty()):
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _abort(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        inbox = self._inboxes.pop(request_id, None)
        if output is not None and inbox is not None:
            self._tell(_deliver, [(inbox, Delta(request_id, "", (), output))])

    def _drop(self, inbox: Inbox) -> None:
        """Nobody reads ``inbox`` any more."""
        for request_id in [name for name, one in self._inboxes.items() if one is inbox]:
            del self._inboxes[request_id]
            self._engine.abort(request_id)

    def _fail(self, error: BaseException) -> None:
        """Nothing that is being served can go on: tell everybody."""
        for request_id, inbox in self._inboxes.items():
            self._engine.abort(request_id)
            self._tell(inbox.put_nowait, error)
        self._inboxes.clear()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give the one who waits for ``future``, if somebody still does, its result."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _deliver(deltas: Sequence[tuple[Inbox, Delta]]) -> None:
    """Put the deltas of a step where they are waited for."""
    for inbox, delta in deltas:
        inbox.put_nowait(delta)
