"""A bar on a terminal's standard error while something takes its time; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from kvreuse.api.progress import PATIENCE, shown_after
from kvreuse.cli import text


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

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    with shown_after(bar, patience):
        yield report
