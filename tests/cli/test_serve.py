"""``kvreuse serve``: what is wrong is said in one line, before a model is loaded."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from .conftest import invoke


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--port", "99999"), "--port must be from 0 to 65535, got 99999"),
        (("--max-queue", "-1"), "--max-queue must be at least 0, got -1"),
        (("--max-body-size", "big"), "--max-body-size"),
        (("--shutdown-timeout", "-2"), "--shutdown-timeout must be seconds of at least 0"),
        (("--log-prompts",), "--log-prompts needs the --request-log FILE"),
        (("--api-key", ""), "--api-key must not be empty"),
        (("--api-key-file", "/nowhere/keys"), "/nowhere/keys: No such file or directory"),
        (("--request-log", "/nowhere/log"), "/nowhere/log: No such file or directory"),
        (("--host", "203.0.113.7"), "203.0.113.7:"),
    ],
)
def test_what_is_wrong(flags: tuple[str, ...], words: str) -> None:
    result = invoke("serve", "no-such-model", "--port", "0", *flags)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_that_is_not_here() -> None:
    result = invoke("serve", "no-such-model", "--port", "0")
    assert result.exit_code == 2
    assert "no-such-model" in result.stderr


def test_without_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    imported = importlib.import_module

    def import_module(name: str) -> Any:
        if name == "kvreuse.server.app":
            raise ModuleNotFoundError("No module named 'starlette'", name="starlette")
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    result = invoke("serve", "no-such-model")
    assert result.exit_code == 2
    assert result.stderr == ("error: serving needs starlette: pip install 'kvreuse[server]'\n")


def test_help_teaches_by_example() -> None:
    shown = invoke("serve", "--help").stdout
    assert "kvreuse serve smollm2-135m --host 0.0.0.0 --api-key-file keys.txt" in shown
    assert "--kv-cache-memory" in shown
