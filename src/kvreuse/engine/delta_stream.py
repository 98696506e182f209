"""DeltaStream: the deltas of one request, computed as they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kvreuse.api.outputs import Delta


class DeltaStream(Iterator[Delta]):
    """The deltas of one request as they come; the last one has the whole result as ``output``.

    ``close``, or dropping the stream, aborts the request.
    """

    def __init__(
        self,
        request_id: str,
        inbox: deque[Delta],
        *,
        step: Callable[[], None],
        abort: Callable[[str], None],
        dropped: deque[str],
    ) -> None:
        """``step`` computes, and fills ``inbox`` sooner or later; ``abort`` ends a request.

        ``dropped`` gets the id of a stream that is dropped unread: the garbage collector comes at
        any moment and in any thread, so its request is aborted before the next step.
        """
        self.request_id = request_id
        self._inbox = inbox
        self._step = step
        self._abort = abort
        self._dropped = dropped
        self._open = True

    def __next__(self) -> Delta:
        """The next delta, computing until there is one."""
        if not self._open:
            raise StopIteration
        while not self._inbox:
            self._step()
        delta = self._inbox.popleft()
        self._open = not delta.finished
        return delta

    def close(self) -> None:
        """Abort the request unless it has ended."""
        if self._open:
            self._open = False
            self._abort(self.request_id)

    def __del__(self) -> None:
        """A stream that nobody reads any more computes nothing."""
        if self._open:
            self._dropped.append(self.request_id)
