"""How numbers and lines are shown; the bar: on a terminal, after a while, gone at the end."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from kvreuse.cli import terminal
from kvreuse.cli.terminal import progress


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0042, "4.2 ms"), (0.0142, "14 ms"), (0.999, "999 ms"), (1.0, "1.0 s"), (75.25, "75.2 s")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert terminal.duration(seconds) == shown


def test_plural() -> None:
    assert [terminal.plural(n, "page") for n in (0, 1, 1234)] == [
        "0 pages",
        "1 page",
        "1,234 pages",
    ]


def test_one_line_drops_breaks_and_controls() -> None:
    assert terminal.one_line("a\n\tb\x1b[31m \x00c  d") == "a b [31m c d"


def test_for_terminal_keeps_text_and_drops_what_could_drive_a_terminal() -> None:
    assert terminal.for_terminal("é\n\t日本\x1b[2J\x07\r\x9b!") == "é\n\t日本[2J!"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal would get of standard error."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    monkeypatch.setattr(terminal, "stderr", lambda: console)
    return stream


def test_a_quick_thing_shows_nothing(screen: io.StringIO) -> None:
    with progress("Loading x") as report:
        assert report is not None
        report(1, 2)
    assert screen.getvalue() == ""


def test_a_slow_thing_shows_how_far_it_is(screen: io.StringIO) -> None:
    with progress("Loading\n[x]", patience=0.0) as report:
        assert report is not None
        report(1, 4)
        deadline = time.monotonic() + 10
        while "25%" not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    shown = screen.getvalue()
    assert "Loading [x]" in shown
    assert "25%" in shown
    assert shown.endswith("\x1b[2K")  # the line is empty again


def test_an_error_ends_the_bar(screen: io.StringIO) -> None:
    with pytest.raises(KeyError), progress("Loading x", patience=0.0):
        raise KeyError("x")


def test_no_terminal_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Loading x", patience=0.0) as report:
        assert report is None
    assert capsys.readouterr().err == ""
