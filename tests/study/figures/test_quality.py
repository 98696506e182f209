"""``quality`` reads what an evaluation wrote, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import ConfigError
from kvreuse.study.figures import quality
from kvreuse.study.figures.record import Options, Record

from .conftest import evaluation, result


def measure(tmp_path: Path, content: Any) -> Record:
    path = tmp_path / "results.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return quality.measure(Options("smollm2-135m", results=path))


def test_results_by_size(tmp_path: Path) -> None:
    record = measure(tmp_path, evaluation())
    assert record.model == "smollm2-135m"
    assert list(record.summary) == [
        "bf16",
        "int8",
        "k8v4",
        "int4 (Hadamard)",
        "int4 (no transform)",
    ]
    assert record.summary["int8"]["ppl_increase"] == 0.0009
    captions = quality.captions(record)
    assert captions.en.title == "int8: 53% of the bytes, +0.09% in perplexity"
    assert "int4 (Hadamard) 6.33 KiB, +5.00%" in captions.en.text
    assert "困惑度" in captions.zh.text


def test_an_evaluation_of_its_own(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "WINDOWS", 1)
    record = quality.measure(Options(str(model_path), tokens=64))
    assert record.settings == {"text": "pydoc_data.topics", "context": 64, "windows": 1}
    assert record.model == model_path.stem
    names = list(record.summary)
    assert names[0] == "bf16"
    assert len(names) == len(record.data["results"]) == 5  # the naive recipe has a name of its own
    assert record.summary["bf16"]["kl_mean"] == 0
    assert all(entry["kl_mean"] > 0 for name, entry in record.summary.items() if name != "bf16")
    assert record.summary["bf16"]["bytes_per_token"] == 23040


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "no results"),
        ({"model": "m", "results": []}, "no results"),
        ({"model": 1, "results": [result("bf16", 1, 0.0)]}, "no results"),
        ({"model": "m", "results": [7]}, "no kv_cache_dtype"),
        ({"model": "m", "results": [result("int8", 9, 0.1)]}, "no result for bf16"),
        ({"model": "m", "results": [result("bf16", 9, float("nan"))]}, "no number 'ppl'"),
        ({"model": "m", "results": [{"kv_cache_dtype": "bf16"}]}, "no number 'ppl'"),
        ({"model": "m", "results": [{**result("bf16", 9, 0), "top1": True}]}, "number 'top1'"),
    ],
)
def test_other_files(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        measure(tmp_path, content)
    assert "results.json" in str(caught.value)
    assert "\n" not in str(caught.value)
