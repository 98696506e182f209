"""Columns under headings, for words and numbers; as wide as they are, on a terminal or not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from kvreuse.cli import text

GAP = "  "


def show_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset({0})
) -> None:
    """Print a table; the columns ``left`` hold words, the others numbers."""
    lines = [[text.one_line(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console = text.stdout()
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        style = "" if number else "cyan"
        console.print(Text(GAP.join(cells).rstrip(), style=style), soft_wrap=True)
