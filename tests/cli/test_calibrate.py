"""kvreuse calibrate and kvreuse eval, on a model of random weights; what runs do with the file."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvreuse import LLM, SamplingParams
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.model.calibrated import calibration_path
from kvreuse.model.open import open_checkpoint

from ..model.gguf.gguf_files import write_tiny_llama
from .conftest import invoke

CODECS = ["bf16", "int8", "int4", "k8v4", "auto"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=128)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def calibrated(model: Path, cache: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return invoke("calibrate", str(model), "--max-ppl-increase", "2%")


def digest(model: Path) -> str:
    with open_checkpoint(model) as checkpoint:
        return checkpoint.digest().hex()


def test_calibrate_tells_what_it_found(calibrated: Any, model: Path) -> None:
    assert calibrated.exit_code == 0, calibrated.stderr
    lines = calibrated.stdout.splitlines()
    assert "pydoc_data.topics, 512 tokens" in lines[0]
    rows = {line.split()[0]: line for line in lines if line.split()}
    assert rows["bf16"].split()[-2:] == ["512", "bytes"]
    assert rows["int8"].endswith("0.562x")
    assert set(rows) >= {"k8v4", "int4", "auto", "auto:"}
    assert calibrated.stderr == ""
    assert f"saved {calibration_path(digest(model))}" in calibrated.stdout


def test_calibrate_leaves_one_file_and_a_picture(calibrated: Any, model: Path) -> None:
    path = calibration_path(digest(model))
    assert sorted(path.parent.iterdir()) == sorted([path, path.with_suffix(".svg")])
    found = Calibration.load(path)
    assert set(found.increases) == {"int8", "k8v4", "int4", "auto"}
    assert found.increases["auto"] <= 0.02
    assert found.widths is not None
    assert path.stat().st_size < 10_000
    ET.parse(path.with_suffix(".svg"))


def test_it_is_found_and_used(calibrated: Any, model: Path) -> None:
    expected = Calibration.load(calibration_path(digest(model))).digest
    for name in ("int8", "auto"):
        with LLM(model, kv_cache_dtype=name, kv_cache_memory="1MiB") as llm:
            assert llm.pool.layout.codec.digest == expected
            llm.generate("Water", SamplingParams(max_tokens=3))


def test_the_same_text_gives_the_same_file(calibrated: Any, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.safetensors"
    again = invoke(
        "calibrate", str(model), "--max-ppl-increase", "2%", "--output", str(target), "--json"
    )
    assert again.exit_code == 0, again.stderr
    assert target.read_bytes() == calibration_path(digest(model)).read_bytes()
    found = json.loads(again.stdout)
    assert [result["kv_cache_dtype"] for result in found["results"]] == [
        "int8",
        "k8v4",
        "int4",
        "auto",
    ]
    assert found["calibration"] == str(target)
    assert found["within_bound"] is True


def test_eval_in_json(calibrated: Any, model: Path) -> None:
    arguments = ("eval", str(model), "--windows", "2", "--kv-cache-dtype", ",".join(CODECS))
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["model"] == str(model)
    rows = found["results"]
    assert [row["kv_cache_dtype"] for row in rows] == [*CODECS, "int4"]
    for row in rows:
        assert set(row) >= {
            "kv_cache_dtype",
            "ppl",
            "ppl_increase",
            "kl_mean",
            "kl_p99",
            "top1",
            "bytes_per_token",
            "transform",
        }
    plain, naive = rows[0], rows[-1]
    assert (plain["ppl_increase"], plain["kl_mean"], plain["top1"]) == (0, 0, 1)
    assert naive["transform"] == "no transform"
    assert rows[2]["transform"] == "constant, scale, Hadamard"
    assert naive["bytes_per_token"] == rows[2]["bytes_per_token"] < plain["bytes_per_token"]
    again = json.loads(invoke(*arguments, "--json").stdout)["results"]
    for row in (*rows, *again):
        assert row.pop("decode_tokens_per_second") > 0
    assert rows == again


def test_eval_as_a_table(calibrated: Any, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "water.txt"
    text.write_text("Water boils at a hundred degrees. " * 40)
    result = invoke(
        "eval", str(model), "--text", str(text), "--kv-cache-dtype", "int8", "--context", "64"
    )
    assert result.exit_code == 0, result.stderr
    assert "water.txt:" in result.stdout
    words = [line.split()[0] for line in result.stdout.splitlines() if line.split()]
    assert words.count("int8") == 2  # calibrated, and naive


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "--kv-cache-dtype", "bf16,int5"], "--kv-cache-dtype must be one of bf16, int8"),
        (["eval", "--context", "1"], "--context must be at least 2, got 1"),
        (["eval", "--windows", "0"], "--windows must be at least 1, got 0"),
        (["eval", "--text", "none.txt"], "cannot read none.txt: No such file or directory"),
        (["eval", "--calibration", "none.st"], "cannot read the calibration none.st: no such file"),
        (["calibrate", "--max-ppl-increase", "some"], "--max-ppl-increase must be a share above 0"),
        (["calibrate", "--max-ppl-increase", "-1%"], "--max-ppl-increase must be a share above 0"),
        (["calibrate", "--text", "none.txt"], "cannot read none.txt: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(model: Path, arguments: list[str], message: str) -> None:
    result = invoke(arguments[0], str(model), *arguments[1:])
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")


def test_a_text_too_short_to_learn_from(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Water boils at a hundred degrees.")
    result = invoke("calibrate", str(model), "--text", str(text))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: short.txt is too short: calibration needs at least 256")


@pytest.mark.usefixtures("calibrated")
class TestRuns:
    """What loading a model does with a calibration."""

    @pytest.fixture
    def damaged(self, calibrated: Any, model: Path, tmp_path: Path) -> Path:
        path = tmp_path / "cut.safetensors"
        path.write_bytes(calibration_path(digest(model)).read_bytes()[:-7])
        return path

    @pytest.fixture
    def collapsing(self, calibrated: Any, model: Path, tmp_path: Path) -> Path:
        path = tmp_path / "collapsing.safetensors"
        found = Calibration.load(calibration_path(digest(model)))
        dataclasses.replace(found, increases={"int4": 3.2, "int8": 0.001}).save(path)
        return path

    def test_a_damaged_file_is_an_error(self, model: Path, damaged: Path) -> None:
        with pytest.raises(ConfigError, match=r"cut\.safetensors: the file is cut off or damaged"):
            LLM(model, kv_cache_dtype="int8", calibration=str(damaged))

    def test_bf16_does_not_look_at_it(self, model: Path, damaged: Path) -> None:
        LLM(model, calibration=str(damaged), kv_cache_memory="1MiB").close()

    def test_another_models_file_is_an_error(self, calibrated: Any, model: Path) -> None:
        other = write_tiny_llama(model.with_name("other.gguf"), context=128, seed=1)
        path = calibration_path(digest(model))
        with pytest.raises(ConfigError, match="the calibration is of another model"):
            LLM(other, kv_cache_dtype="int8", calibration=str(path))

    def test_a_codec_that_collapses_is_refused(self, model: Path, collapsing: Path) -> None:
        arguments = ("run", str(model), "Water", "--raw", "--max-tokens", "2")
        options = ("--kv-cache-dtype", "int4", "--calibration", str(collapsing))
        refused = invoke(*arguments, *options)
        assert refused.exit_code == 2
        [line] = refused.stderr.splitlines()
        assert line.startswith("error: int4 keys and values raise this model's perplexity by 320%")
        assert "int8 +0.1%" in line
        forced = invoke(*arguments, *options, "--force-kv-cache-dtype")
        assert forced.exit_code == 0, forced.stderr

    def test_a_run_without_a_calibration_says_so(
        self, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        arguments = ("run", str(model), "Water", "--raw", "--max-tokens", "2")
        note = "keys and values in int8 (not calibrated: Hadamard)"
        assert note not in invoke(*arguments, "--kv-cache-dtype", "int8").stderr
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert note in invoke(*arguments, "--kv-cache-dtype", "int8").stderr
        assert note not in invoke(*arguments).stderr

    def test_auto_needs_a_calibration(
        self, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(ConfigError, match="run kvreuse calibrate first"):
            LLM(model, kv_cache_dtype="auto")
