"""Loading a model for a command: timed, and with a sign of life on a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kvreuse
from kvreuse.cli import text

if TYPE_CHECKING:
    from kvreuse.llm import LLM

PATIENCE = 0.5
"""Seconds after which a wait is worth a word, on a terminal."""


@contextmanager
def loaded(model: str, options: dict[str, Any]) -> Iterator[tuple[LLM, float]]:
    """The model, closed at the end, and the seconds that loading it took."""
    start = time.perf_counter()
    with waiting(f"Loading {model} ..."):
        llm = kvreuse.LLM(model, **options)
    with llm:
        yield llm, time.perf_counter() - start


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show ``words`` with a spinner on standard error while the body takes its time."""
    console = text.stderr()
    if not console.is_terminal:
        yield
        return
    status = console.status(words, spinner="dots")
    done = threading.Event()

    def show() -> None:
        if not done.wait(PATIENCE):
            with status:
                done.wait()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
