"""A deep stack for native code that recurses: behind the end of a stack the process dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STACK_BYTES = 256 << 20
"""Virtual: what is not used takes no memory."""

_starting = threading.Lock()  # the size of stacks is the process's


def on_deep_stack(function: Callable[[], T]) -> T:
    """What ``function`` returns or raises, called in a thread with a stack of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again by who waits
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
