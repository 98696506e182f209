"""The results for people: one row for each figure, one column for each engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from peers.cases import Figures, Sizes


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one engine: medians, and the counts of :func:`peers.cases.compare` by case."""

    title: str
    version: str
    settings: str
    figures: Figures
    runs: list[Figures]
    same: dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class Row:
    """``more`` says whether more is better."""

    figure: str
    name: str
    unit: str
    more: bool
    digits: int = 0


def rows(sizes: Sizes) -> list[Row]:
    """All figures, in the order of the table."""
    batch = f"{sizes.requests} requests at once,"
    shared = f"{batch} {sizes.shared:,} shared + {sizes.own} own tokens"
    distinct = f"{batch} {sizes.distinct:,} distinct tokens"
    other = f"{sizes.kept:,} of them and {sizes.long - sizes.kept} others: first token"
    return [
        Row("prefill", f"prefill, {sizes.prefill:,} tokens", "tok/s", True),
        Row("prefill_long", f"prefill, {sizes.long:,} tokens", "tok/s", True),
        Row("decode", f"decode, context {sizes.short:,}", "tok/s", True),
        Row("decode_long", f"decode, context {sizes.long:,}", "tok/s", True),
        Row("cold_ms", f"{sizes.long:,} tokens: first token", "ms", False),
        Row("again_ms", f"{sizes.long:,} tokens again: first token", "ms", False, 1),
        Row("other_end_ms", other, "ms", False, 1),
        Row("shared", shared, "tok/s out", True),
        Row("shared_first_ms", "the same: first token, mean", "ms", False),
        Row("distinct", distinct, "tok/s out", True),
        Row("distinct_first_ms", "the same: first token, mean", "ms", False),
        Row("memory", "peak memory", "MiB", False),
        Row("load", "from import to ready", "s", False, 2),
    ]


def checks(sizes: Sizes) -> dict[str, str]:
    """By case of :mod:`peers.cases`: what must be the same."""
    return {
        "again": "the same answer: cached = computed",
        "other_end": f"... cached up to token {sizes.kept:,} = computed",
        "shared": f"... {sizes.checked} at once that share = each alone",
        "distinct": f"... {sizes.checked} at once, distinct = each alone",
    }


def verdict(counts: dict[str, int]) -> str:
    """Bit for bit, token for token, or how many were not."""
    answers = counts["answers"]
    if counts["same_scores"] == answers:
        return "yes, bit for bit"
    if counts["same_ids"] == answers:
        return "tokens only"
    return f"no ({answers - counts['same_ids']} of {answers} differ)"


def cells(results: Sequence[Result], sizes: Sizes) -> list[list[str]]:
    """The body of the table; a peer's figure is followed by how many times better the first is."""
    first = results[0]
    body = []
    for row in rows(sizes):
        cell = [f"{row.name} ({row.unit})"]
        for result in results:
            value, ours = result.figures[row.figure], first.figures[row.figure]
            cell.append(f"{value:,.{row.digits}f}")
            if result is not first:
                cell.append(f"{ours / value if row.more else value / ours:,.2f}x")
        body.append(cell)
    for case, name in checks(sizes).items():
        cell = [name]
        for result in results:
            cell.append(verdict(result.same[case]))
            if result is not first:
                cell.append("")
        body.append(cell)
    return body


def header(results: Sequence[Result]) -> list[str]:
    """Names of the columns."""
    names = ["", results[0].title]
    for result in results[1:]:
        names += [result.title, f"{results[0].title} is better by"]
    return names


def notes(results: Sequence[Result]) -> list[str]:
    """One line for each engine: its version and how it is used."""
    return [f"{result.title} {result.version}: {result.settings}." for result in results]


def rich_table(results: Sequence[Result], sizes: Sizes, title: str) -> Table:
    """For a terminal."""
    table = Table(title=title, title_justify="left", row_styles=["", "dim"])
    for index, name in enumerate(header(results)):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for cell in cells(results, sizes):
        table.add_row(*cell)
    return table


def markdown(results: Sequence[Result], sizes: Sizes) -> str:
    """For a README."""
    names = header(results)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *cells(results, sizes)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return table + "\n\n" + "\n".join(f"* {note}" for note in notes(results))
