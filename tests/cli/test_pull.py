"""``kvreuse pull``: what it prints; fetching is tested with the catalogue and the hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ..model.fetch.hub_server import REPO, Hub, serve
from ..model.gguf.gguf_files import write_tiny_llama
from .conftest import invoke


def test_the_path_is_all_of_standard_output(model_path: Path) -> None:
    result = invoke("pull", "smollm2-135m")
    assert result.exit_code == 0
    assert result.stdout == f"{model_path}\n"
    assert "Apache-2.0" in result.stderr
    assert "SHA-256 verified" in result.stderr


def test_a_model_of_the_hub_from_pull_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("KVREUSE_MODELS", str(tmp_path))
    content = write_tiny_llama(tmp_path / "made.gguf").read_bytes()
    name = f"{REPO}:tiny.gguf"
    run = ("run", name, "Hello", "--raw", "--max-tokens", "2", "--kv-cache-memory", "4MiB")
    with serve(Hub({"tiny.gguf": content})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        early = invoke(*run)
        assert (early.exit_code, early.stdout) == (2, "")
        assert f"get it with: kvreuse pull {name}\n" in early.stderr
        result = invoke("pull", name)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"{name}: ")
    assert result.stderr.endswith("SHA-256 verified\n")
    path = Path(result.stdout.removesuffix("\n"))
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content).digest()
    assert name in invoke("models").stdout
    assert invoke(*run).exit_code == 0


def test_help_teaches_by_example() -> None:
    for command in ("run", "pull", "info"):
        shown = invoke(command, "--help").stdout
        assert f"kvreuse {command} smollm2-135m" in shown
