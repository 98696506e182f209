"""Turn: one caller at a time in an engine, of the thread and the process that it belongs to."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from kvreuse.errors import EngineUseError


class Turn:
    """``with turn:`` lets its thread in; EngineUseError, at once, where another is inside.

    The thread that is inside may enter again, as the sink of a delta does that aborts a request.
    """

    __slots__ = ("_depth", "_inside", "_lock", "_process", "owner")

    def __init__(self) -> None:
        self.owner: int | None = None
        """The only thread that may enter, by ``threading.get_ident()``; None: any."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._inside: int | None = None
        self._depth = 0

    def claim(self) -> None:
        """Let nobody in but this thread, until ``owner`` is None again."""
        with self:
            self.owner = threading.get_ident()

    def __enter__(self) -> None:
        """Go in, or refuse."""
        thread = threading.get_ident()
        if self._inside == thread:
            self._depth += 1
            return
        if self._process != os.getpid():
            raise EngineUseError("it was loaded before this process was forked: load it here")
        if self.owner not in (None, thread):
            raise EngineUseError("it belongs to an AsyncEngine: ask that")
        if not self._lock.acquire(blocking=False):
            raise EngineUseError("another thread is inside: one at a time, or use an LLM")
        self._inside, self._depth = thread, 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Go out."""
        self._depth -= 1
        if not self._depth:
            self._inside = None
            self._lock.release()
