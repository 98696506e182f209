"""DeltaStream: the deltas of one request, computed as they are read."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.thread import EngineThread
from kvreuse.errors import EngineClosedError, EngineUseError, RequestError


class Mailbox:
    """The deltas of some requests, for a reader in any thread: steps are made while it wants one.

    Requests that have not ended are aborted once nobody holds the mailbox any more, whatever the
    reason: an exception out of a signal handler, too.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._box = _Box(thread)

    def submit(self, asks: Sequence[Ask]) -> list[str]:
        """Queue all of ``asks``, or none and raise; returns the requests' ids."""
        box = self._box
        try:
            return self._thread.call(lambda: [box.submit(ask) for ask in asks])
        except BaseException:
            self.abort()
            raise

    def get(self) -> Delta:
        """The next delta, or raises the error that ended a request.

        RequestError where none of the requests is served any more.
        """
        if self._box.items.empty():
            self._thread.order(self._box.want)
        item = self._box.items.get()
        if isinstance(item, Exception):
            raise item
        return item

    def abort(self) -> list[RequestOutput]:
        """Abort the requests that have not ended; what there is of them."""
        with contextlib.suppress(EngineClosedError):
            self._thread.call(self._box.abort)
        items = []
        while not self._box.items.empty():
            items.append(self._box.items.get())
        return [one.output for one in items if isinstance(one, Delta) and one.output is not None]

    def __del__(self) -> None:
        """In any thread and at any moment: the requests are aborted before the next step."""
        if self._box.live:
            with contextlib.suppress(EngineClosedError, EngineUseError):
                self._thread.order(self._box.abort)


class _Box:
    """What the engine's thread has of a mailbox. Its methods are called there."""

    def __init__(self, thread: EngineThread) -> None:
        self.items: queue.SimpleQueue[Delta | Exception] = queue.SimpleQueue()
        self.live: set[str] = set()  # requests that have not ended
        self._thread = thread

    def submit(self, ask: Ask) -> str:
        request_id = self._thread.submit(ask, self)
        self.live.add(request_id)
        return request_id

    def put(self, item: Delta | Exception) -> None:
        """Something for the reader, who wants nothing more for now."""
        if isinstance(item, Delta) and item.finished:
            self.live.discard(item.request_id)
        self.items.put(item)
        self._thread.content(self)

    def want(self) -> None:
        """The reader waits for something."""
        if not self.items.empty():
            return
        if self.live:
            self._thread.want(self)
        else:
            self.items.put(RequestError("the request is not being served any more"))

    def abort(self) -> None:
        """The reader wants nothing more, but what there is of its requests."""
        for request_id in list(self.live):
            self._thread.abort(request_id)
        self._thread.content(self)
        self.live.clear()


class DeltaStream(Iterator[Delta]):
    """The deltas of one request as they come; the last one has the whole result as ``output``.

    ``close``, or dropping the stream, aborts the request.
    """

    def __init__(
        self, ask: Ask, thread: EngineThread, on_end: Callable[[RequestOutput], None]
    ) -> None:
        """``on_end`` gets the result, also of a stream that is closed early.

        RequestError for a request that can never be served.
        """
        self._open = False
        self._on_end = on_end
        self._mailbox = Mailbox(thread)
        (self.request_id,) = self._mailbox.submit([ask])
        self._open = True

    def __next__(self) -> Delta:
        """The next delta, computing until there is one."""
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
