"""``kvreuse models``: what is here, what is wrong with it, and what could be pulled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvreuse.kv.layout import KVLayout
from kvreuse.model.fetch.source import CATALOGUE, resolve
from kvreuse.model.open import open_checkpoint

from ..model.gguf.gguf_files import write_tiny_llama
from .conftest import invoke

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders, a cache and a hub's cache, all empty but for what a test puts there."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KVREUSE_MODELS", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path


def as_json() -> dict[str, dict[str, Any]]:
    result = invoke("models", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert len({frozenset(model) for model in found}) == 1  # all have the same keys
    return {model["name"]: model for model in found}


def put_in_hub_cache(places: Path) -> Path:
    storage = places / "cache" / "huggingface" / "hub" / "models--org--re--po"
    (storage / "refs").mkdir(parents=True)
    (storage / "refs" / "main").write_text(COMMIT)
    folder = storage / "snapshots" / COMMIT / "sub"
    folder.mkdir(parents=True)
    return write_tiny_llama(folder / "h.gguf", layers=1)


def test_what_is_told_of_a_model(places: Path) -> None:
    path = write_tiny_llama(places / "a" / "tiny.gguf", layers=1, vocab=320, context=2048)
    with open_checkpoint(path) as checkpoint:
        per_token = KVLayout.of(checkpoint.shape).bytes_per_token
        parameters = sum(t.nbytes // 4 for t in checkpoint.tensors.values() if t.type == 0)
        parameters += sum(
            t.shape[0] * t.shape[1] for t in checkpoint.tensors.values() if t.type != 0
        )
    assert as_json()["tiny"] == {
        "name": "tiny",
        "place": str(places / "a"),
        "path": str(path),
        "size": path.stat().st_size,
        "architecture": "llama",
        "parameters": parameters,
        "context": 2048,
        "kv_bytes_per_token": per_token,
        "error": None,
    }
    row = next(line for line in invoke("models").stdout.splitlines() if "tiny" in line)
    for words in ("llama", "2,048", "K  "):
        assert words in row


def test_every_name_can_be_run(places: Path) -> None:
    write_tiny_llama(places / "a" / "x.gguf", layers=1)
    write_tiny_llama(places / "b" / "x.gguf", layers=1)
    write_tiny_llama(places / "b" / CATALOGUE["smollm2-135m"].file, layers=1)
    in_hub = put_in_hub_cache(places)
    found = {name: model for name, model in as_json().items() if model["path"] is not None}
    hidden, hub_name = str(places / "b" / "x.gguf"), "org/re--po:sub/h.gguf"
    assert set(found) == {"x", hidden, "smollm2-135m", hub_name}
    assert found[hub_name]["path"] == str(in_hub)
    for name, model in found.items():
        assert str(resolve(name)) == model["path"]


def test_broken_files_are_one_line_each(places: Path) -> None:
    folder = places / "b"
    whole = write_tiny_llama(folder / "whole.gguf", layers=1).read_bytes()
    (folder / "cut.gguf").write_bytes(whole[:5000])
    (folder / "text.gguf").write_text("hello\n")
    (folder / "empty.gguf").touch()
    (folder / "folder.gguf").mkdir()
    (folder / "dangling.gguf").symlink_to("nowhere")
    (folder / "bad\nname.gguf").write_bytes(b"\x1b[31m")
    (folder / "notes.txt").write_text("not a model")
    errors = {name: model["error"] for name, model in as_json().items()}
    assert errors["whole"] is None
    assert "cut off" in errors["cut"] or "claims" in errors["cut"]
    assert "not a GGUF file" in errors["text"]
    assert errors["empty"] == "the file is empty"
    assert "folder" in errors["folder"]
    assert errors["dangling"] == "No such file or directory"
    assert "notes" not in errors
    result = invoke("models")
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(line.isprintable() for line in result.stdout.splitlines())
    assert sum("error: " in line for line in result.stdout.splitlines()) == 6
    assert len(result.stdout.splitlines()) == 2 + 7 + 1 + len(CATALOGUE)


def test_what_could_be_pulled(places: Path) -> None:
    found = as_json()
    assert set(found) == set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert (found[name]["size"], found[name]["path"]) == (entry.size, None)
        assert found[name]["error"] == f"not here yet: kvreuse pull {name}"
    shown = invoke("models").stdout
    assert shown.startswith("not here yet: kvreuse pull NAME\n  smollm2-135m")


def test_the_default_model_is_listed_under_its_name(model_path: Path) -> None:
    assert as_json()["smollm2-135m"]["path"] == str(model_path)
