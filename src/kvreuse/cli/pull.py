"""``kvreuse pull``: fetch a model of the catalogue into the user's cache folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from kvreuse.cli import text
from kvreuse.errors import ModelFileError
from kvreuse.kv.memory import format_size
from kvreuse.model import source


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model's name; without one, the list of names.")
    ] = "",
) -> None:
    """Get a model by name, checked against its SHA-256, and print the file's path.

    [dim]kvreuse pull smollm2-135m[/]
    """
    if not name:
        raise ModelFileError(f"which model? kvreuse pull NAME, with one of: {_names()}")
    with _progress(name) as report:
        path = source.pull(name, progress=report)
    entry = source.CATALOGUE[name]
    text.stderr().print(
        f"{name}: {format_size(entry.size)}, {entry.license}, SHA-256 verified", style="dim"
    )
    text.write_out(f"{path}\n")


def _names() -> str:
    return ", ".join(
        f"{name} ({format_size(entry.size)})" for name, entry in source.CATALOGUE.items()
    )


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error where that is a terminal; nothing elsewhere."""
    console = text.stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
