"""EngineThread: the thread that an engine lives in, whoever asks it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.engine import Engine
from kvreuse.errors import EngineClosedError, EngineUseError

T = TypeVar("T")


class Inbox(Protocol):
    """Where the deltas of requests go. Its methods are called on the engine's thread."""

    def put(self, item: Delta | Exception) -> None:
        """A delta, or the error that ended the request."""


class EngineThread:
    """Carries out orders between steps, and makes steps while somebody wants them.

    Python's signal handlers run in the main thread only: whatever they raise, a step that is under
    way comes to its end, and no page is lost. Where a step fails, the requests in it are served one
    by one until each has had its turn: only the one that fails by itself ends with the error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        always: bool,
        on_step: Callable[[Sequence[Delta]], None] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """``always``: requests are served whether anybody wants it or not.

        ``on_step`` sees the deltas of every step, ``on_end`` what there is of every request that
        ends, also one that was aborted or failed; both on the thread.
        """
        self._engine = engine
        self._always = always
        self._on_step, self._on_end = on_step, on_end
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # of orders, so that none comes when the last was taken
        self._process = os.getpid()
        self._open = True
        self._started = False
        self._moved = time.monotonic()  # when a step or a rest began
        self._thread = threading.Thread(target=self._work, name="kvreuse engine", daemon=True)
        # What follows is the thread's, as the engine is.
        self._inboxes: dict[str, Inbox] = {}
        self._post: list[tuple[Inbox, Delta]] = []  # of the step that is under way
        self._suspects: set[str] = set()  # who has yet to be served alone
        self._readers: set[Inbox] = set()  # who wants steps

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self._open

    @property
    def stalled(self) -> float:
        """Seconds since it last began a step, while it has something to do; else 0."""
        if not self._open:
            return 0.0
        busy = self._engine.has_unfinished or not self._orders.empty()
        return time.monotonic() - self._moved if busy else 0.0

    def order(self, function: Callable[[], None]) -> None:
        """Have ``function``, which must not raise, called between two steps.

        EngineClosedError where the thread has ended, EngineUseError behind a fork.
        """
        if self._process != os.getpid():
            raise EngineUseError("it was loaded before this process was forked: load it here")
        with self._gate:
            if not self._open:
                raise EngineClosedError
            self._orders.put(function)
            if not self._started:
                self._started = True
                self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises, called between two steps; waits for it."""
        replies: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def obey() -> None:
            try:
                replies.put((function(), None))
            except BaseException as error:  # raised again by who waits
                replies.put((None, error))

        self.order(obey)
        result, error = replies.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None only where T has it

    def stop(self) -> None:
        """Abort what is being served and take no more orders. It ends after its step."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            if self._started:
                self._orders.put(None)
            else:
                del self._engine

    def join(self) -> None:
        """Wait for its end."""
        if self._started and self._process == os.getpid():
            self._thread.join()

    # What follows is called on the thread.

    def submit(self, ask: Ask, inbox: Inbox) -> str:
        """Queue ``ask``, whose deltas go to ``inbox``; returns the request's id."""

        def sink(delta: Delta) -> None:
            if delta.output is not None:
                self._inboxes.pop(delta.request_id, None)
                self._suspects.discard(delta.request_id)
                self._end(delta.output)
            self._post.append((inbox, delta))

        request_id = self._engine.submit(ask, sink).request_id
        self._inboxes[request_id] = inbox
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request; its inbox gets a last delta with what there is of the answer."""
        output = self._remove(request_id)
        inbox = self._inboxes.pop(request_id, None)
        if output is not None and inbox is not None:
            inbox.put(Delta(request_id, "", (), output))

    def drop(self, request_id: str, inbox: Inbox) -> None:
        """Nobody reads ``inbox`` any more."""
        if self._inboxes.get(request_id) is inbox:
            del self._inboxes[request_id]
            self._remove(request_id)

    def want(self, reader: Inbox) -> None:
        """``reader`` wants steps, until :meth:`content`."""
        self._readers.add(reader)

    def content(self, reader: Inbox) -> None:
        """``reader`` has what it wanted."""
        self._readers.discard(reader)

    def _work(self) -> None:
        """Orders, then a step, again and again. Whatever ends it, nobody waits on."""
        try:
            while self._obey():
                self._moved = time.monotonic()
                self._step()
        finally:
            with self._gate:
                self._open = False
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None:
                    order()
            self._fail(list(self._inboxes), EngineClosedError())
            del self._engine  # whoever still holds the thread holds no pages

    def _obey(self) -> bool:
        """Carry out orders; wait for one where there is nothing to do. False: it was the last."""
        while not (self._busy and self._orders.empty()):
            order = self._orders.get()
            self._moved = time.monotonic()
            if order is None:
                return False
            order()
        return True

    @property
    def _busy(self) -> bool:
        return bool((self._always or self._readers) and self._engine.has_unfinished)

    def _step(self) -> None:
        try:
            deltas = self._engine.step(self._suspects)
        except Exception as error:
            self._blame(error)
            return
        if self._suspects:
            self._suspects.difference_update(self._engine.suspects)
        post, self._post = self._post, []
        for inbox, delta in post:  # only now: who reads it may use the engine
            inbox.put(delta)
        if self._on_step is not None:
            self._on_step(deltas)

    def _blame(self, error: Exception) -> None:
        """A step failed: end the request that it served, or serve them one by one."""
        names = self._engine.suspects
        if len(names) == 1:
            self._fail(names, error)
        elif names:
            self._suspects = set(names)
        else:
            self._fail(list(self._inboxes), error)

    def _fail(self, request_ids: Sequence[str], error: Exception) -> None:
        """These cannot go on: tell them."""
        for request_id in request_ids:
            self._remove(request_id)
            inbox = self._inboxes.pop(request_id, None)
            if inbox is not None:
                inbox.put(error)

    def _remove(self, request_id: str) -> RequestOutput | None:
        """Take a request out of the engine; what there is of it."""
        self._suspects.discard(request_id)
        output = self._engine.abort(request_id)
        if output is not None:
            self._end(output)
        return output

    def _end(self, output: RequestOutput) -> None:
        if self._on_end is not None:
            self._on_end(output)
