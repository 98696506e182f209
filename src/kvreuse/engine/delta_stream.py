"""DeltaStream: the deltas of one request, computed as they are read."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.thread import Dropped, EngineThread
from kvreuse.errors import EngineClosedError, RequestError


class Mailbox:
    """The deltas of some requests, for a reader in any thread: steps run while it waits for one.

    When the last reference to the mailbox is dropped, also by an exception from a signal handler,
    the requests that have not ended are aborted.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._box = _Box(thread)
        self._box.dropped = thread.order_when_dropped(self, self._box.abort)

    def submit(self, asks: Sequence[Ask]) -> list[str]:
        """Queue all of ``asks``, or none and raise; returns the requests' ids."""
        box = self._box
        try:
            return self._thread.call(lambda: [box.submit(ask) for ask in asks])
        except BaseException:
            self.abort()
            raise

    def get(self) -> Delta:
        """The next delta; raises the error that ended a request.

        RequestError if all requests have ended and all their deltas were read.
        """
        if self._box.items.empty():
            self._thread.order(self._box.want)
        item = self._box.items.get()
        if isinstance(item, Exception):
            raise item
        return item

    def abort(self) -> list[RequestOutput]:
        """Abort the requests that have not ended; returns all results that were not read."""
        with contextlib.suppress(EngineClosedError):
            self._thread.call(self._box.abort)
        items = []
        while not self._box.items.empty():
            items.append(self._box.items.get())
        return [one.output for one in items if isinstance(one, Delta) and one.output is not None]


class _Box:
    """The engine thread's side of a mailbox: its methods are called on that thread."""

    def __init__(self, thread: EngineThread) -> None:
        self.items: queue.SimpleQueue[Delta | Exception] = queue.SimpleQueue()
        self.live: set[str] = set()  # requests that have not ended
        self.dropped: Dropped | None = None  # kept until the requests have been aborted
        self._thread = thread

    def submit(self, ask: Ask) -> str:
        request_id = self._thread.submit(ask, self)
        self.live.add(request_id)
        return request_id

    def put(self, item: Delta | Exception) -> None:
        """Hand ``item`` to the reader, which no longer waits."""
        if isinstance(item, Delta) and item.finished:
            self.live.discard(item.request_id)
        self.items.put(item)
        self._thread.remove_reader(self)

    def want(self) -> None:
        """The reader waits for an item: run steps, or hand it an error if no request is left."""
        if not self.items.empty():
            return
        if self.live:
            self._thread.add_reader(self)
        else:
            self.items.put(RequestError("the request has already ended"))

    def abort(self) -> None:
        """Abort the requests that have not ended; the reader gets their partial results."""
        for request_id in list(self.live):
            self._thread.abort(request_id)
        self._thread.remove_reader(self)
        self.live.clear()
        self.dropped = None


class DeltaStream(Iterator[Delta]):
    """The deltas of one request as they come; the last one has the whole result as ``output``.

    ``close``, or dropping the stream, aborts the request.
    """

    def __init__(
        self, ask: Ask, thread: EngineThread, on_end: Callable[[RequestOutput], None]
    ) -> None:
        """``on_end`` gets the result, a partial one if the stream is closed early.

        RequestError for a request that can never be served.
        """
        self._open = False
        self._on_end = on_end
        self._mailbox = Mailbox(thread)
        (self.request_id,) = self._mailbox.submit([ask])
        self._open = True

    def __next__(self) -> Delta:
        """The next delta; waits until one has been computed."""
        if not self._open:
            raise StopIteration
        delta = self._mailbox.get()
        if delta.output is not None:
            self._open = False
            self._on_end(delta.output)
        return delta

    def close(self) -> None:
        """Abort the request unless it has ended."""
        if self._open:
            self._open = False
            for output in self._mailbox.abort():
                self._on_end(output)
