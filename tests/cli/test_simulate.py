"""``kvreuse simulate``: its table, its JSON, its curve, its errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import invoke


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One prompt of four blocks, three times, and another in between."""
    prompts = [[1, 2, 3, 4], [7, 8], [1, 2, 3, 4], [1, 2, 3, 4]]
    rows = [
        {"timestamp": at, "input_length": 512 * len(p), "output_length": 1, "hash_ids": p}
        for at, p in enumerate(prompts)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_table(trace: Path) -> None:
    result = invoke("simulate", str(trace), "--capacity", "4,1_000")
    assert (result.exit_code, result.stderr) == (0, "")
    first, heading, small, large = (line.split() for line in result.stdout.splitlines())
    assert " ".join(first) == "4 requests, 7,168 tokens, 6 different blocks of 512 tokens"
    assert heading[:3] == ["CAPACITY", "TOKENS", "HIT-DENSITY"]
    assert heading[-1] == "MIN"
    assert small == ["4", "2,048", "42.9%", "75.0%", "42.9%", "75.0%", "57.1%"]
    assert large == ["1,000", "512,000", "57.1%", "100.0%", "57.1%", "100.0%", "57.1%"]


def test_json_and_a_curve(trace: Path, tmp_path: Path) -> None:
    svg = tmp_path / "curve.svg"
    result = invoke(
        *("simulate", str(trace), "--capacity", "1000,4", "--policy", "lru", "--json"),
        *("--session-ends", "infer", "--svg", str(svg)),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert [row["capacity"] for row in found.pop("hit_rates")] == [4, 1000]
    assert found == {
        "trace": str(trace),
        "requests": 4,
        "tokens": 7168,
        "blocks": 6,
        "block_tokens": 512,
        "session_ends": "infer",
    }
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.parametrize("capacity", ["0", "x", "", "4,-1"])
def test_a_capacity_that_is_none(trace: Path, capacity: str) -> None:
    result = invoke("simulate", str(trace), f"--capacity={capacity}")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --capacity must be one number of blocks or several")


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    result = invoke("simulate", str(tmp_path / "none"), "--capacity", "4")
    assert result.exit_code == 2
    assert "No such file" in result.stderr
    assert len(result.stderr.splitlines()) == 1
