"""``kvreuse figure``: its files, its JSON, its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvreuse.cli.figure import NAMES
from kvreuse.study.figures.catalogue import KINDS

from .conftest import invoke
from .test_bad_input import error_of

TINY = ("--tokens", "8", "--repeats", "1")


def test_the_help_names_every_figure() -> None:
    assert list(NAMES) == list(KINDS)


def test_files_and_a_caption(model_path: Path, tmp_path: Path) -> None:
    assert model_path.exists()
    result = invoke("figure", "growth", *TINY, "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("8 tokens in ")
    assert "N(N+1)/2 = 36" in lines[1]
    assert [Path(line.strip()).exists() for line in lines[2:]] == [True] * 5


def test_json_needs_no_matplotlib(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("figure", "growth", str(model_path), *TINY, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["summary"]["without_rows"] == 36
    assert found["model"] == model_path.stem


def test_drawing_again(model_path: Path, tmp_path: Path) -> None:
    printed = invoke("figure", "growth", str(model_path), *TINY, "--json").stdout
    path = tmp_path / "numbers.json"
    path.write_text(printed, encoding="utf-8")
    result = invoke("figure", "growth", "--redraw", str(path), "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "growth.json").read_text(encoding="utf-8") == printed
    assert "not of pool" in error_of("figure", "pool", "--redraw", str(path))


def test_matplotlib_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = error_of("figure", "growth")
    assert error == 'error: figures need matplotlib: pip install "kvreuse[figures]"'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pie"], "no figure 'pie' (there are: growth, memory, prefix, pool, quality)"),
        (["growth", "no-such-model"], "no-such-model"),
        (["growth", "--tokens", "3"], "--tokens must be at least 4"),
        (["growth", "--repeats", "0"], "--repeats must be at least 1"),
        (["growth", "--budget", "0"], "--budget must be more than 0"),
        (["growth", "--budget", "nan"], "--budget must be more than 0"),
        (["growth", "--threads", "0"], "--threads must be at least 1"),
        (["growth", "--redraw", "no-such-file.json"], "no-such-file.json"),
        (["quality", "--results", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_what_cannot_be_done(arguments: list[str], words: str) -> None:
    assert words in error_of("figure", *arguments)


def test_a_folder_that_is_a_file(model_path: Path, tmp_path: Path) -> None:
    assert model_path.exists()
    path = tmp_path / "file"
    path.write_text("")
    assert str(path) in error_of("figure", "growth", *TINY, "--output", str(path))
