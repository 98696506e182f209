"""What ``kvreuse why`` found: lines for a person, one object for a program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kvreuse.cli import terminal
from kvreuse.cli.terminal import plural, say, show_table

if TYPE_CHECKING:
    from kvreuse.study.why.compare import Comparison, Difference
    from kvreuse.study.why.culprits import Culprit
    from kvreuse.study.why.log import CauseReport, Line, LogReport

HEADINGS = ("CAUSE", "REQUESTS", "TOKENS LOST", "HIT RATE IF MENDED")
PIECE = 60
"""Characters of a piece that are shown."""


@dataclasses.dataclass(frozen=True)
class PairReport:
    """Two prompts compared."""

    names: tuple[str, str]
    found: Comparison

    def as_json(self) -> dict[str, Any]:
        """All that was found; counts in tokens and pages."""
        found = self.found
        return {
            "files": list(self.names),
            "tokens": [found.one_tokens, found.other_tokens],
            "shared_tokens": found.shared_tokens,
            "reused_tokens": found.reused_tokens,
            "page_size": found.page_size,
            "shared_pages": found.shared_pages,
            "pages": found.other_pages,
            "part": found.part,
            "difference": _difference_json(found.difference),
            **_culprit_json(found.culprit),
        }

    def show(self, _worst: int = 0) -> None:
        """Print it."""
        found = self.found
        one, other = map(terminal.one_line, self.names)
        rest = found.shared_tokens % found.page_size
        pages = f"{found.shared_pages} of {found.other_pages} pages"
        say(
            Text.assemble(
                f"{other} shares its first ",
                (f"{found.shared_tokens:,} of {plural(found.other_tokens, 'token')}", "bold"),
                f" with {one}: {pages} of {found.page_size}"
                + (f", and {plural(rest, 'token')} of the next" if rest else ""),
            )
        )
        for line in self._where():
            say(line)

    def _where(self) -> list[Text]:
        found = self.found
        if found.difference is None and found.culprit is None:
            return [Text("They are the same.")]
        lines = []
        if found.difference is not None:
            place = f"They part at token {found.shared_tokens:,}"
            place += f", in: {found.part}" if found.part is not None else ""
            if found.part is None and not (found.difference.one and found.difference.other):
                place = "One starts with all of the other: nothing is lost"
            lines.append(Text(place))
            width = max(map(len, self.names))
            lines += _both_sides(found.difference, [name.ljust(width) for name in self.names])
        if found.culprit is not None:
            lines += _cause(found.culprit)
        elif found.part is not None:
            lines.append(Text("No usual cause is recognised: the prompts differ here."))
        return lines


@dataclasses.dataclass(frozen=True)
class LogView:
    """A log replayed."""

    name: str
    report: LogReport

    def as_json(self) -> dict[str, Any]:
        """All that was found, of every line; counts in tokens, rates as shares of them."""
        report = self.report
        return {
            "file": self.name,
            "requests": len(report.lines),
            "page_size": report.page_size,
            "tokens": report.tokens,
            "cached_tokens": report.cached,
            "lost_tokens": report.lost,
            "hit_rate": report.hit_rate,
            "mended_hit_rate": report.mended_hit_rate,
            "causes": [
                {
                    "cause": None if one.cause is None else one.cause.value,
                    "advice": None if one.cause is None else one.cause.advice,
                    "requests": one.lines,
                    "lost_tokens": one.lost,
                    "mended_hit_rate": one.mended_hit_rate,
                }
                for one in report.causes
            ],
            "lines": [_line_json(line) for line in report.lines],
        }

    def show(self, worst: int) -> None:
        """Print it, with so many of the worst lines."""
        report = self.report
        title = f"{self.name}: {plural(len(report.lines), 'request')}, "
        title += f"{plural(report.tokens, 'token')}, pages of {report.page_size}"
        say(terminal.one_line(title), "bold")
        new = report.tokens - report.cached - report.lost
        for label, count, words in (
            ("reused", report.cached, "computed before, and found"),
            ("lost", report.lost, "computed before, but not found again"),
            ("new", new, "not seen before"),
        ):
            share = count / report.tokens
            say(f"  {label:<7}{share:>7.1%} {count:>13,} tokens, {words}")
        if report.causes:
            say("")
            self._show_causes()
        for line in report.worst(worst):
            say("")
            for row in _line_rows(line, f"{Path(self.name).name}, "):
                say(row)

    def _show_causes(self) -> None:
        report = self.report
        rows = list(map(_cause_row, report.causes))
        if sum(one.cause is not None for one in report.causes) > 1:
            rows.append(("all of them", "", f"{report.lost:,}", f"{report.mended_hit_rate:.1%}"))
        show_table(HEADINGS, rows, indent=2)
        for one in report.causes:
            if one.cause is not None:
                say(f"  {one.cause.value}: {one.cause.advice}", "dim")


def _cause_row(one: CauseReport) -> tuple[str, ...]:
    rate = "" if one.mended_hit_rate is None else f"{one.mended_hit_rate:.1%}"
    name = "not recognised" if one.cause is None else one.cause.value
    return name, f"{one.lines:,}", f"{one.lost:,}", rate


def _line_rows(line: Line, file: str) -> list[Text]:
    """A line and its difference from an earlier one; ``file`` need not be said again."""
    name = line.name.removeprefix(file)
    head = f"{name}: {line.lost:,} of {plural(line.tokens, 'token')} lost"
    head += f" after {line.cached:,}"
    head += f", in: {line.part}" if line.part is not None else ""
    head += f" ({line.culprit.cause.value})" if line.culprit is not None else ""
    rows = [Text(terminal.one_line(head), style="bold")]
    if line.difference is not None and line.like is not None:
        names = [line.like.removeprefix(file), name]
        width = max(map(len, names))
        rows += _both_sides(line.difference, [name.ljust(width) for name in names])
    return rows


def _both_sides(found: Difference, names: list[str]) -> list[Text]:
    """The text of both around the difference, the pieces that differ highlighted."""
    sides = ((found.one, found.one_after, "red"), (found.other, found.other_after, "green"))
    rows = []
    for name, (piece, after, colour) in zip(names, sides, strict=True):
        cut = "\u2026" if len(piece) > PIECE else ""
        rows.append(
            Text.assemble(
                (f"  {terminal.one_line(name):<{len(name)}}  ", "cyan"),
                (_visible(found.before), "dim"),
                (_visible(piece[:PIECE]) + cut or "\u2205", f"bold {colour}"),
                ("" if cut else _visible(after), "dim"),
            )
        )
    return rows


def _visible(words: str) -> str:
    """A text on one line, its line ends visible."""
    shown = words.replace("\n", "\u23ce").replace("\t", "\u21e5")
    return "".join(char if char.isprintable() else "\ufffd" for char in shown)


def _cause(found: Culprit) -> list[Text]:
    pieces = [piece for piece in (found.one, found.other) if piece]
    words = f" ({' / '.join(map(_visible, pieces))})" if pieces else ""
    return [
        Text.assemble("Cause: ", (found.cause.value, "bold yellow"), words),
        Text(f"  {found.cause.advice}", style="dim"),
    ]


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "tokens": line.tokens,
        "cached_tokens": line.cached,
        "lost_tokens": line.lost,
        "part": line.part,
        "like": line.like,
        "difference": _difference_json(line.difference),
        **_culprit_json(line.culprit),
    }


def _difference_json(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "character": found.at,
        "before": found.before,
        "one": found.one,
        "other": found.other,
        "one_after": found.one_after,
        "other_after": found.other_after,
    }


def _culprit_json(found: Culprit | None) -> dict[str, Any]:
    if found is None:
        return {"cause": None, "advice": None, "pieces": None}
    return {
        "cause": found.cause.value,
        "advice": found.cause.advice,
        "pieces": [found.one, found.other],
    }
