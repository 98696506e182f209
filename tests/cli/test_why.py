"""``kvreuse why`` with the real model's tokenizer: what it says of two files, and of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..study.why.chats import RULES, chat
from .conftest import invoke

Files = tuple[Path, Path, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Two chats with a clock, and a log of them and more."""
    chats = [chat(f"It is 10:{i:02d}. {RULES}", f"Who is in dock {i}?") for i in range(15, 24)]
    one, other, log = (tmp_path / name for name in ("one.json", "other.json", "log.jsonl"))
    one.write_text(json.dumps(chats[0]))
    other.write_text(json.dumps(chats[1]))
    log.write_text("".join(json.dumps(one) + "\n" for one in chats))
    return one, other, log


def why(model_path: Path, *arguments: Path | str) -> Any:
    result = invoke("why", str(model_path), *map(str, arguments))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_two_chats(model_path: Path, files: Files) -> None:
    one, other, _ = files
    lines = why(model_path, one, other).splitlines()
    assert lines[0].startswith(f"{other} shares its first ")
    assert " pages of 32" in lines[0]
    assert lines[1].endswith(", in: system text")
    assert "It is 10:15. You are" in lines[2]
    assert "It is 10:16. You are" in lines[3]
    assert lines[4] == "Cause: clock (10:15 / 10:16)"
    found = json.loads(why(model_path, one, other, "--json"))
    assert (found["cause"], found["pieces"]) == ("clock", ["10:15", "10:16"])
    assert found["part"] == "system text"
    assert found["reused_tokens"] == found["shared_tokens"] < found["tokens"][1]


def test_two_texts(model_path: Path, tmp_path: Path) -> None:
    texts = {"a": "Once upon a time, a ship", "b": "Once upon a time, a boat", "c": "Once upon"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    lines = why(model_path, tmp_path / "a", tmp_path / "b").splitlines()
    assert lines[1].startswith("They part at token ")
    assert lines[2].endswith("Once upon a time, a ship")
    assert "nothing is lost" in why(model_path, tmp_path / "a", tmp_path / "c")
    assert "They are the same." in why(model_path, tmp_path / "a", tmp_path / "a")
    (tmp_path / "b").write_text("Once\nupon a \x1b[31mtime, a boat")
    assert "\x1b" not in why(model_path, tmp_path / "a", tmp_path / "b")


def test_a_log(model_path: Path, files: Files) -> None:
    *_, log = files
    shown = why(model_path, log)
    assert shown.startswith(f"{log}: 9 requests, ")
    for row in ("  reused ", "  lost ", "  new ", "  CAUSE ", "  clock "):
        assert f"\n{row}" in shown
    assert shown.count("\nline ") == 5
    assert why(model_path, log, "--worst", "0").count("\nline ") == 0
    found = json.loads(why(model_path, log, "--json"))
    assert found["requests"] == len(found["lines"]) == 9
    assert found["tokens"] == sum(line["tokens"] for line in found["lines"])
    assert [one["cause"] for one in found["causes"]] == ["clock"]
    assert found["mended_hit_rate"] > found["hit_rate"] + 0.5
    assert found["lines"][1]["name"] == "log.jsonl, line 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there is no request in it"),
        ('{"messages": []}', "line 1: 'messages' must be a list of at least one message"),
        ('[{"role": "user", "content": "hi"}]\n{"mess', "line 2: not JSON"),
        ('{"prompt": "a"}\n{"input": 5}', "line 2: neither messages nor a prompt"),
    ],
)
def test_a_bad_log_is_one_line(
    model_path: Path, tmp_path: Path, content: str, message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(content)
    result = invoke("why", str(model_path), str(log))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_other_bad_input_is_one_line(model_path: Path, files: Files) -> None:
    one, other, log = map(str, files)
    for arguments, message in (
        ([one, other, log], "give two files, or one log, not 3 files"),
        ([one, "nowhere.json"], "nowhere.json: No such file or directory"),
        ([one, other, "--page-size", "33"], "--page-size"),
        (["/"], "/: Is a directory"),
    ):
        result = invoke("why", str(model_path), *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        assert message in result.stderr
