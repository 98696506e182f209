"""How numbers and lines are shown."""

from __future__ import annotations

import pytest

from kvreuse.cli import text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0042, "4.2 ms"), (0.0142, "14 ms"), (0.999, "999 ms"), (1.0, "1.0 s"), (75.25, "75.2 s")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_rate_needs_tokens_and_time() -> None:
    assert text.rate(10, 0.5) == 20
    assert text.rate(0, 0.5) is None
    assert text.rate(10, 0.0) is None


def test_plural() -> None:
    assert [text.plural(n, "page") for n in (0, 1, 1234)] == ["0 pages", "1 page", "1,234 pages"]


def test_one_line_drops_breaks_and_controls() -> None:
    assert text.one_line("a\n\tb\x1b[31m \x00c  d") == "a b [31m c d"


def test_for_terminal_keeps_text_and_drops_what_could_drive_a_terminal() -> None:
    assert text.for_terminal("é\n\t日本\x1b[2J\x07\r\x9b!") == "é\n\t日本[2J!"
