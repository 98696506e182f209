"""Exclusive: a lock that lets one thread at a time use an engine, in the process that made it."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from kvreuse.errors import EngineUseError


class Exclusive:
    """``with exclusive:`` takes the lock; EngineUseError, at once, if another thread has it.

    The lock is reentrant: a sink that runs during a step may abort a request.
    """

    __slots__ = ("_depth", "_inside", "_lock", "_process", "owner")

    def __init__(self) -> None:
        self.owner: int | None = None
        """The only thread that may take the lock (``threading.get_ident()``); None: any thread."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._inside: int | None = None
        self._depth = 0

    def claim(self) -> None:
        """Let only the calling thread take the lock, until ``owner`` is set to None."""
        with self:
            self.owner = threading.get_ident()

    def __enter__(self) -> None:
        """Take the lock. EngineUseError if this thread or process may not, or another has it."""
        thread = threading.get_ident()
        if self._inside == thread:
            self._depth += 1
            return
        if self._process != os.getpid():
            raise EngineUseError("it was loaded before this process was forked: load it here")
        if self.owner not in (None, thread):
            raise EngineUseError("it belongs to an AsyncEngine: send requests to that")
        if not self._lock.acquire(blocking=False):
            raise EngineUseError("another thread is using it: use one thread at a time, or an LLM")
        self._inside, self._depth = thread, 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            self._inside = None
            self._lock.release()
