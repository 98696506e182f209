"""``kvreuse info``: this machine, and what the real model is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvreuse.cli.app import app
from kvreuse.ops import native

from ..model.gguf.gguf_files import write_tiny
from .conftest import invoke


def test_the_machine_alone() -> None:
    result = invoke("info")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("machine\n")
    assert native.cpu_name() in result.stdout
    assert "model" not in result.stdout


def test_json_has_machine_and_model(model_path: Path) -> None:
    result = invoke("info", str(model_path), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["machine"]["isa"] in native.available_isas()
    assert found["machine"]["threads"] >= 1
    assert 0 < found["machine"]["kv_cache_memory"] < found["machine"]["memory_available"]
    model = found["model"]
    assert model["architecture"] == "llama"
    assert (model["layers"], model["heads"], model["kv_heads"], model["head_dim"]) == (30, 9, 3, 64)
    assert model["kv_bytes_per_token"] == 23040
    assert model["page_bytes"] == 32 * 23040
    assert model["context"] == 8192
    assert {kind: entry["count"] for kind, entry in model["tensors"].items()} == {
        "Q4_1": 210,
        "F32": 61,
        "Q8_0": 1,
    }
    assert json.loads(invoke("info", "--json").stdout).keys() == {"machine"}


def test_the_figures_of_the_model_are_shown(model_path: Path) -> None:
    shown = invoke("info", str(model_path)).stdout
    for words in ("llama", "22.5 KiB", "720 KiB", "8,192 tokens", "210 Q4_1", "1 Q8_0"):
        assert words in shown


def test_windows_and_scaling_are_shown(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x.gguf", "gemma3", layers=4, scaling={"factor": 8.0})
    shown = invoke("info", str(path)).stdout
    assert "64 tokens on 2 of 4 layers" in shown
    assert "base 1,000,000, linear scaling by 8" in shown
    assert "base 10,000\n" in shown
    model = json.loads(invoke("info", str(path), "--json").stdout)["model"]
    assert model["windows"] == [64, None, 64, None]
    assert model["rope"] == {"base": 1e6, "dims": 32, "scaling": "linear", "factor": 8.0}
    assert model["local_rope"] == {"base": 1e4, "dims": 32, "scaling": "none"}


def test_factors_are_shown(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x.gguf", rope_factors=(2.0,) * 16)
    shown = invoke("info", str(path)).stdout
    assert "base 10,000, slowed by factors of the file" in shown
    assert "window" not in shown


def test_what_becomes_of_the_weights_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_tiny(path, hidden=256, ffn=256, heads=8, matrix_type="Q4_K", embed_type="Q6_K")
    shown = invoke("info", str(path)).stdout
    assert "14 Q4_K, repacked to 4-bit with minimum: scales rounded to fp16\n" in shown
    assert "1 Q6_K, repacked to 8-bit: groups of 16 widened to 32\n" in shown
    assert "5 F32, repacked to f32: exact\n" in shown


def test_the_choice_of_a_path_is_explained() -> None:
    shown = invoke("info").stdout
    assert f"{native.available_isas()[0]}: the fastest this machine has" in shown
    for path in native.cpu_report():
        assert f"{path.name} " in shown
        assert path.missing in shown


@pytest.mark.parametrize("name", native.available_isas())
def test_a_forced_path_is_named_as_such(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, name)
    result = CliRunner().invoke(app, ["info"])
    assert f"{name}: {native.ISA_VARIABLE} says so" in result.stdout


def test_a_forced_path_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, "pentium")
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "pentium" in result.stderr
