"""EngineThread: the only thread that uses an engine; other threads give it orders."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
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


class Dropped(weakref.ref[object]):
    """An order for the time when the last reference to an object is dropped."""

    __slots__ = ("function",)

    function: Callable[[], None]

    def __call__(self) -> None:
        """Carry out the order."""
        self.function()


class EngineThread:
    """Carries out orders (functions) between steps, and runs steps while a reader waits for deltas.

    Python's signal handlers run in the main thread only, so an exception from one never interrupts
    a step, and no page is lost. If a step fails, its requests are then served one at a time: only a
    request that fails alone ends with the error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        always: bool,
        on_step: Callable[[Sequence[Delta]], None] | None = None,
        on_put: Callable[[], None] | None = None,
        on_end: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        """``always``: run steps even while no reader waits.

        ``on_step`` sees the deltas of every step before they are put into the inboxes, ``on_put``
        is called after that, ``on_end`` gets the result of every request that ends, also of one
        that was aborted or failed; all of them on the thread.
        """
        self._engine = engine
        self._always = always
        self._on_step, self._on_put, self._on_end = on_step, on_put, on_end
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.RLock()  # held to put an order, so that none comes after the last
        self._process = os.getpid()
        self._open = True
        self._started = False
        self._moved = time.monotonic()  # when it last began a step or took an order
        self._thread = threading.Thread(target=self._work, name="kvreuse engine", daemon=True)
        # Only the thread uses what follows, and the engine.
        self._inboxes: dict[str, Inbox] = {}
        self._post: list[tuple[Inbox, Delta]] = []  # deltas of the step under way
        self._suspects: set[str] = set()  # ids of requests still to be served alone
        self._readers: set[Inbox] = set()  # those that wait for deltas

    @property
    def alive(self) -> bool:
        """Whether the thread accepts orders."""
        return self._open

    @property
    def stalled(self) -> float:
        """Seconds since the thread last began a step or took an order; 0 if it has no work."""
        if not self._open:
            return 0.0
        busy = self._engine.has_unfinished or not self._orders.empty()
        return time.monotonic() - self._moved if busy else 0.0

    def order(self, function: Callable[[], None]) -> None:
        """Call ``function``, which must not raise, on the thread between two steps; do not wait.

        EngineClosedError if the thread has been stopped, EngineUseError in a forked process.
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

    def order_when_dropped(self, owner: object, function: Callable[[], None]) -> Dropped:
        """Order ``function`` once ``owner`` is no longer referred to; keep what is returned.

        The order is put by C code: Python code that ran then, as in ``__del__``, could be left by
        an exception from a signal handler, which would be lost, and the order with it.
        """
        dropped = Dropped(owner, self._orders.put)
        dropped.function = function
        return dropped

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the thread between two steps; return or raise what it does."""
        replies: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                replies.put((function(), None))
            except BaseException as error:  # raised again in the caller's thread
                replies.put((None, error))

        self.order(run)
        result, error = replies.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None only if T allows it

    def stop(self) -> None:
        """Refuse new orders; the thread ends after its step and the orders before this call.

        Requests that have not ended get EngineClosedError.
        """
        with self._gate:
            if not self._open:
                return
            self._open = False
            if self._started:
                self._orders.put(None)
            else:
                del self._engine

    def join(self) -> None:
        """Wait until the thread has ended; called on the thread itself, return at once."""
        started = self._started and self._process == os.getpid()
        if started and threading.current_thread() is not self._thread:
            self._thread.join()

    def end(self) -> None:
        """Stop the thread and wait until it has ended."""
        self.stop()
        self.join()

    # What follows is called on the thread.

    def submit(self, ask: Ask, inbox: Inbox) -> str:
        """Queue ``ask``, whose deltas go to ``inbox``; returns the request's id."""
        if self._always:  # steps of another thread would serve its requests
            self._engine.exclusive.claim()

        def sink(delta: Delta) -> None:
            self._post.append((inbox, delta))

        try:
            request_id = self._engine.submit(ask, sink).request_id
            self._inboxes[request_id] = inbox
        finally:
            self._release()
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request; its inbox gets a last delta with the partial result."""
        output = self._remove(request_id)
        inbox = self._pop(request_id)
        if output is not None and inbox is not None:
            inbox.put(Delta(request_id, "", (), output))

    def drop(self, request_id: str, inbox: Inbox) -> None:
        """Abort a request whose ``inbox`` is no longer read."""
        if self._inboxes.get(request_id) is inbox:
            self._remove(request_id)
            self._pop(request_id)

    def add_reader(self, reader: Inbox) -> None:
        """Run steps, as long as there are requests, until ``reader`` is removed."""
        self._readers.add(reader)

    def remove_reader(self, reader: Inbox) -> None:
        """``reader`` waits no longer."""
        self._readers.discard(reader)

    def _work(self) -> None:
        """Carry out orders, then run a step, in a loop. When it ends, no caller is left waiting."""
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
            del self._engine  # a reference to the thread must not keep the pages

    def _obey(self) -> bool:
        """Carry out the queued orders, or wait for one if no step is due. False: stop."""
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
        if self._on_step is not None:
            self._on_step(deltas)
        post, self._post = self._post, []
        for inbox, delta in post:  # after the step, since the reader may use the engine
            if delta.output is not None:
                self._pop(delta.request_id)
                self._suspects.discard(delta.request_id)
                self._end(delta.output)
            inbox.put(delta)
        if self._on_put is not None:
            self._on_put()

    def _blame(self, error: Exception) -> None:
        """A step failed: end its only request, or serve its requests one at a time from now on."""
        names = self._engine.suspects
        if len(names) == 1:
            self._fail(names, error)
        elif names:
            self._suspects = set(names)
        else:
            self._fail(list(self._inboxes), error)

    def _fail(self, request_ids: Sequence[str], error: Exception) -> None:
        """End these requests; their inboxes get ``error``."""
        for request_id in request_ids:
            self._remove(request_id)
            inbox = self._pop(request_id)
            if inbox is not None:
                inbox.put(error)

    def _pop(self, request_id: str) -> Inbox | None:
        """The inbox of a request that is served no more."""
        inbox = self._inboxes.pop(request_id, None)
        self._release()
        return inbox

    def _release(self) -> None:
        """Let other threads use the engine where it serves nothing of this one."""
        if self._always and not self._inboxes:
            self._engine.exclusive.owner = None

    def _remove(self, request_id: str) -> RequestOutput | None:
        """Abort a request in the engine; returns its partial result, None if it has ended."""
        self._suspects.discard(request_id)
        output = self._engine.abort(request_id)
        if output is not None:
            self._end(output)
        return output

    def _end(self, output: RequestOutput) -> None:
        if self._on_end is not None:
            self._on_end(output)
