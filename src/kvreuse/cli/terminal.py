"""The terminal: its two streams, numbers and lines as a person reads them, tables, a bar."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from kvreuse.api.progress import PATIENCE, shown_after


def stdout() -> Console:
    """Standard output; colours only where it is a terminal."""
    return Console(highlight=False, emoji=False)


def stderr() -> Console:
    """Standard error; colours only where it is a terminal."""
    return Console(stderr=True, highlight=False, emoji=False)


def duration(seconds: float) -> str:
    """A time with about three digits: ``14 ms``, ``2.3 s``."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s"


def plural(count: int, noun: str) -> str:
    """``1 page``, ``2 pages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str) -> str:
    """The text with line breaks and control characters turned into single spaces."""
    return " ".join("".join(c if _printable(c) else " " for c in text).split())


def for_terminal(text: str) -> str:
    """A model's text without the control characters that could drive a terminal; keeps \\n, \\t."""
    return "".join(c for c in text if c in "\n\t" or _printable(c))


def _printable(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cs")


def write_out(text: str) -> None:
    """Write to standard output at once; characters that its encoding lacks become ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write a value to standard output as JSON, on one line."""
    write_out(json.dumps(value) + "\n")


def say(words: str | Text, style: str = "") -> None:
    """Print a line to standard output; it is not wrapped, and nothing in it is markup."""
    stdout().print(Text(words, style) if isinstance(words, str) else words, soft_wrap=True)


def show_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Container[int] = (0,),
    *,
    indent: int = 0,
) -> None:
    """Print rows under headings, if any; the columns ``left`` hold words, the others numbers.

    Columns are as wide as their cells. The last cell of a row that has fewer cells than there are
    headings may be wider than its column; where it is an error, the row is red.
    """
    columns = len(headings) or max(map(len, rows))
    lines = [[one_line(cell) for cell in row] for row in (headings, *rows) if row]
    whole = [line if len(line) == columns else line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip_longest(*whole, fillvalue="")]
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        error = line[-1].startswith("error: ")
        style = "cyan" if headings and not number else "red" if error else ""
        say(" " * indent + "  ".join(cells).rstrip(), style)


@contextmanager
def progress(words: str, patience: float = PATIENCE) -> Iterator[Callable[[int, int], None] | None]:
    """Yields what takes (done, total), or ``None`` where nobody would see the bar.

    The bar is on a terminal's standard error. It appears after ``patience`` seconds, moves to and
    fro until the total is known, and is gone at the end.
    """
    console = stderr()
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
    task = bar.add_task(one_line(words), total=None)

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    with shown_after(bar, patience):
        yield report
