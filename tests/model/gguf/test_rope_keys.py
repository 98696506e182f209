"""The scaling of the rotary embedding, out of a file's keys and its tensor of factors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.open import open_checkpoint
from kvreuse.shape import RopeSpec

from .gguf_files import write_tiny

YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_context_length": 256,
}


def rope_of(path: Path) -> RopeSpec:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.shape.rope


@pytest.mark.parametrize("scaling", [{}, {"type": "none"}, {"type": "linear", "factor": 1.0}])
def test_none(tmp_path: Path, scaling: dict[str, Any]) -> None:
    assert rope_of(write_tiny(tmp_path / "x", scaling=scaling)).scaling == "none"


@pytest.mark.parametrize(
    "keys",
    [
        {"scaling": {"type": "linear", "factor": 2.5}},
        {"scaling": {"factor": 2.5}},
        {"extra": {"llama.rope.scale_linear": 2.5}},
    ],
)
def test_linear(tmp_path: Path, keys: dict[str, Any]) -> None:
    rope = rope_of(write_tiny(tmp_path / "x", **keys))
    assert (rope.scaling, rope.scaling_params) == ("linear", (("factor", 2.5),))


def test_llama3(tmp_path: Path) -> None:
    rope = rope_of(write_tiny(tmp_path / "x", scaling=LLAMA3))
    assert rope.scaling == "llama3"
    assert dict(rope.scaling_params) == {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context": 256.0,
    }


def test_yarn(tmp_path: Path) -> None:
    rope = rope_of(write_tiny(tmp_path / "x", "qwen3", scaling=YARN))
    assert rope.scaling == "yarn"
    assert dict(rope.scaling_params) == {
        "factor": 4.0,
        "original_context": 128.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attn_factor": pytest.approx(0.1 * math.log(4) + 1),
    }


def test_yarn_with_all_its_numbers(tmp_path: Path) -> None:
    more = {"attn_factor": 0.5, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    rope = rope_of(write_tiny(tmp_path / "x", scaling={**YARN, **more}))
    assert (rope.param("beta_fast"), rope.param("beta_slow")) == (16.0, 2.0)
    assert rope.param("attn_factor") == pytest.approx(0.5 * (0.1 * math.log(4) + 1))


def test_yarn_is_trained_on_the_context_where_the_file_says_no_other(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", scaling={"type": "yarn", "factor": 2.0}, context=768)
    assert rope_of(path).param("original_context") == 768


def test_factors(tmp_path: Path) -> None:
    factors = (1.0,) * 8 + (1.5, 2.5, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0)
    rope = rope_of(write_tiny(tmp_path / "x", rope_factors=factors))
    assert rope == RopeSpec("interleaved", 10000.0, 32, scaling="factors", factors=factors)


def test_factors_of_a_part_of_the_channels(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", rope_dims=8, rope_factors=(1.0, 2.0, 3.0, 4.0))
    assert rope_of(path).factors == (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": {"type": "longrope"}}, "is 'longrope', which is not supported (supported: n"),
        ({"scaling": {"type": 3}}, "scaling.type' is 3, which is not supported"),
        ({"scaling": {"type": "none", "factor": 2.0}}, "scaling.factor' is 2.0, which is not"),
        ({"scaling": {"type": "linear", "factor": 0.0}}, "is 0.0; it must be above 0 and finite"),
        ({"scaling": {"type": "linear", "factor": 0.5}}, "is 0.5; it must be at least 1"),
        ({"scaling": {"factor": math.inf}}, "is inf; it must be above 0 and finite"),
        ({"scaling": {"factor": math.nan}}, "is nan; it must be above 0 and finite"),
        ({"scaling": {"factor": 2.0, "attn_factor": 2.0}}, "attn_factor' is 2.0, which is not"),
        ({"scaling": {"type": "yarn"}}, "the key 'llama.rope.scaling.factor' is missing"),
        ({"scaling": {**YARN, "factor": -2.0}}, "is -2.0; it must be above 0"),
        ({"scaling": {**YARN, "original_context_length": 0}}, "is 0; it must be from 1 to"),
        ({"scaling": {**YARN, "yarn_beta_slow": 32.0}}, "must be below the yarn_beta_fast 32.0"),
        ({"scaling": {**YARN, "yarn_ext_factor": 0.5}}, "yarn_ext_factor' is 0.5, which is not"),
        ({"scaling": {**YARN, "yarn_log_multiplier": 1.0}}, "is 1.0, which is not supported"),
        ({"scaling": {**YARN, "attn_factor": 0.0}}, "is 0.0; it must be above 0"),
        ({"scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "below the high_freq_factor 4.0"),
        ({"scaling": {**LLAMA3, "high_freq_factor": None}}, "high_freq_factor' is missing"),
        ({"rope_factors": (1.0,) * 15}, "'rope_freqs.weight' is F32 15, not F32 16"),
        (
            {"rope_factors": (1.0,) * 16, "types": {"rope_freqs.weight": "F16"}},
            "is F16 16, not F32",
        ),
        ({"rope_factors": (1.0,) * 15 + (0.0,)}, "holds 0.0; it must be above 0 and finite"),
        ({"rope_factors": (math.nan,) * 16}, "holds nan; it must be above 0 and finite"),
        ({"rope_factors": (1.0,) * 16, "scaling": {"factor": 2.0}}, "both scale; use one of them"),
        ({"extra": {"llama.rope.scaling.alpha": 2.0}}, "scaling.alpha' is 2.0, which is not"),
    ],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write_tiny(tmp_path / "x", **options)
    with pytest.raises(ModelFileError) as caught:
        rope_of(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert line.isprintable()
