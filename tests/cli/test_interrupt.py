"""Ctrl-C while the command line is still being imported."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pytest

from kvreuse.cli import main


class Interrupts(MetaPathFinder):
    """Whoever imports the application presses Ctrl-C."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "kvreuse.cli.app":
            raise KeyboardInterrupt


def test_an_interrupt_during_the_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "kvreuse.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == ""
