"""The bar: on a terminal, after a while, and gone at the end; nothing elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from kvreuse.cli import text
from kvreuse.cli.progress import progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal would get of standard error."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(text, "stderr", lambda: console)
    return screen


def test_a_quick_thing_shows_nothing(terminal: io.StringIO) -> None:
    with progress("Loading x") as report:
        assert report is not None
        report(1, 2)
    assert terminal.getvalue() == ""


def test_a_slow_thing_shows_how_far_it_is(terminal: io.StringIO) -> None:
    with progress("Loading\n[x]", patience=0.0) as report:
        assert report is not None
        report(1, 4)
        deadline = time.monotonic() + 10
        while "25%" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    shown = terminal.getvalue()
    assert "Loading [x]" in shown
    assert "25%" in shown
    assert shown.endswith("\x1b[2K")  # the line is empty again


def test_an_error_ends_the_bar(terminal: io.StringIO) -> None:
    with pytest.raises(KeyError), progress("Loading x", patience=0.0):
        raise KeyError("x")


def test_no_terminal_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Loading x", patience=0.0) as report:
        assert report is None
    assert capsys.readouterr().err == ""
