"""The pages about the cache: what they show is there, is current, and runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from kvreuse.cli.app import app
from kvreuse.study.figures.catalogue import KINDS

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [DOCS / "kv-cache.md", DOCS / "kv-cache.zh.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
CONSOLE = re.compile(r"^\$ (kvreuse .*?)(?: {2,}#.*)?$", re.M)


def captions(*arguments: str | Path) -> tuple[int, str]:
    """What ``bench/captions.py`` ends with and prints."""
    command = [sys.executable, ROOT / "bench" / "captions.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_every_figure_has_its_place(page: Path) -> None:
    places = re.findall(r"^<!-- figure (\w+) -->$", page.read_text(encoding="utf-8"), re.M)
    assert sorted(places) == sorted(KINDS)


def test_captions_are_those_of_the_numbers(page: Path) -> None:
    assert captions(page, "--check") == (0, ""), "run make figures"


def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    paths = {one or other for one, other in targets}
    assert paths
    assert [path for path in paths if not (page.parent / path).exists()] == []


def test_commands_exist(page: Path) -> None:
    commands = CONSOLE.findall(page.read_text(encoding="utf-8"))
    assert len(commands) >= 5
    known = typer.main.get_command(app)
    context = typer.Context(known)
    for words in map(shlex.split, commands):
        command = known.get_command(context, words[1])  # type: ignore[attr-defined]
        assert command is not None, words
        command.make_context(words[1], words[2:])  # parsed, not run


def test_both_pages_show_the_same_programs() -> None:
    english, chinese = (PYTHON.findall(page.read_text(encoding="utf-8")) for page in PAGES)
    assert english == chinese


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, "continued: everything the same: True\nanother first token: layer  0: 97% "),
        (1, "117 tokens, 112 of them cached\nwith another salt: 0\n"),
    ],
)
def test_the_programs_run(
    number: int, printed: str, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model_path.exists()  # the programs name it
    program = PYTHON.findall(PAGES[0].read_text(encoding="utf-8"))[number]
    exec(compile(program, PAGES[0].name, "exec"), {})
    assert printed in capsys.readouterr().out


def test_a_place_without_numbers_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figure growth -->\nnot yet\n<!-- /figure -->\n")
    assert captions(page) == (0, "")
    assert "not yet" in page.read_text()


def test_a_place_with_numbers_is_filled(tmp_path: Path) -> None:
    caption = '{"title": "T \\"quoted\\"", "text": "X"}'
    (tmp_path / "figures").mkdir()
    numbers = tmp_path / "figures" / "growth.json"
    numbers.write_text(f'{{"captions": {{"en": {caption}, "zh": {caption}}}}}')
    for name, words in (("a.md", "Measured by"), ("a.zh.md", '**T "quoted"。** X')):
        page = tmp_path / name
        page.write_text("before\n<!-- figure growth -->\n<!-- /figure -->\nafter\n")
        assert captions(page, "--check") == (1, f"{page}: is stale\n")
        assert captions(page) == (0, f"{page}: new captions\n")
        text = page.read_text(encoding="utf-8")
        assert words in text
        assert 'alt="T &quot;quoted&quot;' in text
        assert text.startswith("before\n")
        assert text.endswith("<!-- /figure -->\nafter\n")
        assert captions(page, "--check") == (0, "")
