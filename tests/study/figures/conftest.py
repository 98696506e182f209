"""Records of all figures, measured once in tiny sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreuse.study.figures.catalogue import KINDS
from kvreuse.study.figures.record import Options, Record

TOKENS = {"growth": 16, "memory": 1024, "prefix": 32, "pool": 64}


def result(codec: str, nbytes: int, rise: float, transform: str = "") -> dict[str, Any]:
    """A result as ``kvreuse eval --json`` writes it."""
    return {
        "kv_cache_dtype": codec,
        "ppl": 16.0 * (1 + rise),
        "ppl_increase": rise,
        "kl_mean": rise / 2,
        "kl_p99": rise * 4,
        "top1": 1 - rise,
        "bytes_per_token": nbytes,
        "transform": transform,
    }


def evaluation() -> dict[str, Any]:
    """An evaluation of four codecs, one of them twice."""
    results = [
        result("int4", 6480, 0.05, "Hadamard"),
        result("int4", 6480, 0.2, "no transform"),
        result("bf16", 23040, 0.0),
        result("k8v4", 9360, 0.012),
        result("int8", 12240, 0.0009),
    ]
    return {"model": "some/where/smollm2-135m.gguf", "results": results}


@pytest.fixture(scope="session")
def measured(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """A record of each figure."""
    results = tmp_path_factory.mktemp("evaluation") / "results.json"
    results.write_text(json.dumps(evaluation()), encoding="utf-8")
    return {
        name: kind.measure(
            Options(str(model_path), tokens=TOKENS.get(name), repeats=1, results=results)
        )
        for name, kind in KINDS.items()
    }
