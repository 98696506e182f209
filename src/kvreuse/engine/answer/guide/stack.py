"""A deep stack for native code that recurses: a stack overflow there kills the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STACK_BYTES = 256 << 20
"""Virtual memory: pages of the stack that are not used take no memory."""

_starting = threading.Lock()  # threading.stack_size is global to the process


def on_deep_stack(function: Callable[[], T]) -> T:
    """Call ``function`` in a thread with a stack of STACK_BYTES; return or raise what it does."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    with _starting:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=call, name="kvreuse form", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
