"""A bar on a terminal's standard error while something takes its time; nothing elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from kvreuse.cli import text

PATIENCE = 1.0
"""Seconds after which a wait is worth a bar."""


@contextmanager
def progress(words: str, patience: float = PATIENCE) -> Iterator[Callable[[int, int], None] | None]:
    """Yields what takes (done, total), or ``None`` where nobody would see the bar.

    The bar appears after ``patience`` seconds, moves to and fro until it is told how much there is
    to do, and is gone at the end.
    """
    console = text.stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(text.one_line(words), total=None)
    finished = threading.Event()

    def show() -> None:
        if not finished.wait(patience):
            with bar:
                finished.wait()

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        finished.set()
        thread.join()
