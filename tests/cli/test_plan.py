"""``kvreuse plan``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreuse.sizes import available_memory, format_size

from .conftest import invoke
from .test_bad_input import error_of


def planned(*arguments: str) -> dict[str, Any]:
    result = invoke("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_tables() -> None:
    arguments = ("--parallel", "4", "--shared-prefix", "1024", "--memory", "24GiB")
    result = invoke("plan", "gemma-3-1b", *arguments)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "gemma-3-1b: gemma3_text, 26 layers, context 32,768 tokens",
        "22 x 1 KV head of 256 channels, window of 512 tokens",
        "needed reserved here",
        "a token 26 KiB 26 KiB",
        "a token, once past the windows 4 KiB 26 KiB",
        "a sequence of 32,768 tokens 139 MiB 832 MiB",
        "4 sequences 556 MiB 3.25 GiB",
        "the same, 1,024 tokens of each shared 544 MiB 3.17 GiB",
        "longest context of 4 sequences 32,768 tokens, its limit",
        "tokens 1 sequence 4 sequences 16 sequences 64 sequences",
        "1,024 26 MiB 104 MiB 416 MiB 1.62 GiB",
        "32,768 832 MiB 3.25 GiB 13 GiB 52 GiB !",
        "! with all the rest, more than 24 GiB",
        "int8 13.2 KiB 1.61 GiB 49% 32,768 tokens",
    ):
        assert line in lines
    assert "1 GiB = 1,073,741,824 bytes" in result.stdout
    [warning] = result.stderr.splitlines()
    assert warning.startswith("warning: keys and values of 4 sequences of 32,768 tokens (3.17 GiB)")
    assert "outgrow the weights (1.86 GiB)" in warning


def test_decimal_units() -> None:
    shown = invoke("plan", "llama-2-7b", "--context", "4096", "--memory", "24GB", "--si").stdout
    assert "2.15 GB" in shown
    assert "iB" not in shown
    assert "2 GiB" in invoke("plan", "llama-2-7b", "--context", "4096").stdout


def test_json_has_bytes() -> None:
    arguments = ("--context", "8192", "--parallel", "2", "--shared-prefix", "4096")
    found = planned("gpt-oss-20b", *arguments, "--kv-cache-dtype", "int8", "--memory", "24GiB")
    row = 8 * (64 + 4) * 2  # of a layer: 8 heads, a key and a value of 64 bytes and a scale
    assert found["token"] == {"needed": 24 * row, "reserved": 24 * row}
    assert found["sequence"]["reserved"] == 8192 * 24 * row
    assert found["sequence"]["needed"] == 12 * row * (8192 + 128)
    assert found["batch"]["reserved"] == 2 * 8192 * 24 * row
    assert found["batch_sharing"]["reserved"] == (4096 + 2 * 4096) * 24 * row
    assert found["batch_sharing"]["needed"] == 12 * row * (4096 + 2 * 4096 + 2 * 128)
    assert found["memory"] == 24 << 30
    assert found["total"] == found["weights"] + found["batch_sharing"]["needed"]
    assert (found["model"]["served"], found["warnings"]) == (False, [])
    assert [entry["codec"] for entry in found["codecs"]] == ["bf16", "int8", "int4", "k8v4"]
    assert found["codecs"][0]["saved"] == 0
    assert found["codecs"][1]["batch"] == found["batch_sharing"]["needed"]
    assert {cell["sequences"] for cell in found["table"]} == {1, 2, 4, 16, 64}
    whole = [cell for cell in found["table"] if (cell["tokens"], cell["sequences"]) == (8192, 2)]
    assert [cell["kv"] for cell in whole] == [found["batch"]["needed"]]


def test_what_fits_in_this_machine(model_path: Path) -> None:
    found = planned(str(model_path), "--context", "1024")
    assert found["memory"] == pytest.approx(available_memory(), rel=0.2)
    assert found["model"]["served"]
    assert found["fits"]["context"] == 8192
    page = found["page"]["bytes"]
    left = found["memory"] - found["total"]
    # each sequence more takes its pages, and a row of the buffers of the logits
    assert 1 + left // (32 * page + (1 << 20)) <= found["fits"]["parallel"]
    assert found["fits"]["parallel"] <= 1 + left // (32 * page)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "9000"), "--context 9,000 is beyond the model's limit of 8,192 tokens"),
        (
            ("--context", "8192", "--parallel", "64"),
            "64 sequences of 8,192 tokens (11.2 GiB)",
        ),
        (("--memory", "100MiB"), "more than the 100 MiB there are"),
    ],
)
def test_warnings(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("plan", "smollm2-135m", *arguments)
    assert result.exit_code == 0
    assert any(words in line for line in result.stderr.splitlines())
    assert any(words in line for line in planned("smollm2-135m", *arguments)["warnings"])


def test_weights_larger_than_the_machine() -> None:
    result = invoke("plan", "deepseek-v3", "--memory", "24GiB")
    assert "none: the weights alone are larger" in result.stdout
    assert "this engine does not serve it" in result.stdout
    assert planned("deepseek-v3", "--memory", "24GiB")["fits"] == {"context": 0, "parallel": 0}


def test_weights_that_nothing_tells(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64}')
    result = invoke("plan", str(path), "--memory", "1GiB")
    assert "unknown (--weights)" in result.stdout
    assert "no limit" in result.stdout
    found = planned(str(path), "--memory", "1GiB", "--weights", "1000MB")
    assert found["total"] == found["weights"] + found["sequence"]["needed"]
    assert found["weights"] == 1_000_000_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--memory", "0"), "--memory must be more than 0 bytes"),
        (("--memory", "-1"), "--memory must be a size"),
        (("--memory", "lots"), "--memory must be a size"),
        (("--context", "0"), "--context must be from 1"),
        (("--context", "-5"), "--context must be from 1"),
        (("--context", str(10**18)), "--context must be from 1"),
        (("--parallel", "0"), "--parallel must be from 1"),
        (("--shared-prefix", "-1"), "--shared-prefix must be from 0"),
        (("--shared-prefix", "99", "--context", "98"), "longer than a sequence of 98 tokens"),
        (("--page-size", "33"), "--page-size must be a positive multiple of 32"),
        (
            ("--kv-cache-dtype", "fp8"),
            "'fp8' is not a codec to plan (known: bf16, int8, int4, k8v4)",
        ),
        (("--weights", "-3"), "--weights must be a size"),
    ],
)
def test_wishes_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    assert words in error_of("plan", "llama-3-8b", *arguments)


@pytest.mark.parametrize("length", [3, 20, 5_000, 1_000_000, 50_000_000])
def test_a_truncated_file(length: int, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with model_path.open("rb") as stream:
        path.write_bytes(stream.read(length))
    assert str(path) in error_of("plan", str(path))


def test_models_that_are_none(tmp_path: Path) -> None:
    assert "llama-3-8b" in error_of("plan", "no-such-model")
    assert "no GGUF file either" in error_of("plan", str(tmp_path))
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "starship", "hidden_size": 64}')
    assert "model_type 'starship', hidden_size 64" in error_of("plan", str(path))


def test_a_plan_that_fits_is_kept(model_path: Path) -> None:
    found = planned(str(model_path), "--context", "8192", "--parallel", "4")
    assert found["sequence"]["reserved"] == 8192 * 23040
    assert format_size(found["page"]["bytes"]) == "720 KiB"
