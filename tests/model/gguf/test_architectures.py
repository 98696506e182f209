"""The spec of each architecture, and what is refused in the keys that only some have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.architectures import ARCHITECTURES, NEUTRAL, NO_WINDOWS
from kvreuse.model.gguf.names import tensor_name
from kvreuse.model.open import open_checkpoint
from kvreuse.model.tensors import weights_of
from kvreuse.shape import ModelShape, RopeSpec, attention

from .gguf_files import tiny_metadata, tiny_tensors, write_gguf, write_tiny

EVERY = pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))


def spec_of(path: Path) -> ModelShape:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.shape


def test_llama(tmp_path: Path) -> None:
    spec = spec_of(write_tiny(tmp_path / "x", "llama", tied=False))
    expected = ModelShape(
        architecture="llama",
        layers=(attention(2, 32),) * 2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        vocab_size=320,
        context_length=512,
        rms_norm_eps=float(np.float32(1e-5)),
        rope=RopeSpec("interleaved", 10000.0, 32),
    )
    assert spec == expected


def test_llama_with_a_bias(tmp_path: Path) -> None:
    assert spec_of(write_tiny(tmp_path / "x", "llama", bias=True)).qkv_bias


def test_mistral_has_a_window_on_every_layer(tmp_path: Path) -> None:
    spec = spec_of(write_tiny(tmp_path / "x", "llama", layers=3, window=96))
    assert spec.windows == (96, 96, 96)
    assert spec.local_rope is None


def test_qwen2(tmp_path: Path) -> None:
    spec = spec_of(write_tiny(tmp_path / "x", "qwen2"))
    assert spec.qkv_bias
    assert not spec.qk_norm
    assert spec.rope.pairs == "half"
    assert (spec.activation, spec.embedding_scale) == ("silu", 1.0)


def test_qwen3(tmp_path: Path) -> None:
    spec = spec_of(write_tiny(tmp_path / "x", "qwen3", head_dim=96))
    assert spec.qk_norm
    assert not spec.qkv_bias
    assert spec.rope == RopeSpec("half", 10000.0, 96)


def test_gemma3_as_published_files_leave_it_out(tmp_path: Path) -> None:
    """No pattern of windows, no local base, no number of rotated channels, no vocabulary size."""
    absent = (
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
        "rope.freq_base",
        "rope.dimension_count",
        "vocab_size",
    )
    spec = spec_of(
        write_tiny(
            tmp_path / "x",
            "gemma3",
            layers=13,
            window=512,
            extra=dict.fromkeys((f"gemma3.{key}" for key in absent), None),
        )
    )
    assert spec.windows == (*(512,) * 5, None, *(512,) * 5, None, 512)
    assert spec.rope == RopeSpec("half", 1_000_000.0, 32)
    assert spec.local_rope == RopeSpec("half", 10_000.0, 32)
    assert spec.embedding_scale == 8.0
    assert spec.activation == "gelu_tanh"
    assert spec.qk_norm
    assert spec.post_norms
    assert spec.attention_scale is None


def test_gemma3_scales_only_where_it_sees_all(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 8.0}
    spec = spec_of(write_tiny(tmp_path / "x", "gemma3", scaling=scaling, local_rope_base=5000.0))
    assert spec.rope.scaling_params == (("factor", 8.0),)
    assert spec.local_rope == RopeSpec("half", 5000.0, 32)


def test_the_largest_gemma3_scales_its_scores_otherwise(tmp_path: Path) -> None:
    spec = spec_of(write_tiny(tmp_path / "x", "gemma3", layers=62, matrix_type="Q8_0"))
    assert spec.attention_scale == 1 / math.sqrt(64 / 4)


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (0, (64, 64, 64, 64)),
        (1, (None, None, None, None)),
        (2, (64, None, 64, None)),
        (3, (64, 64, None, 64)),
        ([False, True, True, False], (None, 64, 64, None)),
    ],
)
def test_patterns_of_windows(tmp_path: Path, pattern: Any, windows: tuple[int | None]) -> None:
    path = write_tiny(tmp_path / "x", "gemma3", layers=4, window=64, pattern=pattern)
    assert spec_of(path).windows == windows


@EVERY
def test_tensors_are_those_that_the_format_names(architecture: str, tmp_path: Path) -> None:
    """All of an architecture's tensors in the package's tables, but those that we refuse."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    named = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[numbers[architecture]]}
    spec = spec_of(write_tiny(tmp_path / "x", architecture, layers=1, tied=False))
    ours = {tensor_name(weight).rpartition(".")[0] for weight, _ in weights_of(spec)}
    refused = {name for name in named if "rope" in name or "rot" in name or "exp" in name}
    refused |= {"blk.{bid}.ffn_gate_inp"}
    assert ours == {name.format(bid=0) for name in named - refused}


def test_keys_are_those_that_the_format_names() -> None:
    groups = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
    named = {value for group in groups for value in vars(group).values() if isinstance(value, str)}
    older_keys = {"{arch}.rope.scale_linear"}
    assert {f"{{arch}}.{key}" for key in (*NEUTRAL, *NO_WINDOWS)} <= named | older_keys


@EVERY
def test_missing_tensors(architecture: str, tmp_path: Path) -> None:
    """Each one that the architecture has makes a difference."""
    metadata = tiny_metadata(architecture, layers=1)
    tensors = tiny_tensors(metadata)
    optional = {"blk.0.attn_q.bias"} if architecture == "llama" else set()
    for name in tensors.keys() - optional:
        rest = {other: weights for other, weights in tensors.items() if other != name}
        path = write_gguf(tmp_path / "x", metadata, rest)
        with pytest.raises(ModelFileError, match=f"the tensor '{name}' is missing"):
            spec_of(path)


@EVERY
def test_small_tensors_of_another_shape(architecture: str, tmp_path: Path) -> None:
    metadata = tiny_metadata(architecture, layers=1)
    tensors = tiny_tensors(metadata, bias=architecture == "qwen2")
    for name in [name for name, weights in tensors.items() if weights.ndim == 1]:
        path = write_gguf(tmp_path / "x", metadata, {**tensors, name: tensors[name][:-1]})
        with pytest.raises(ModelFileError, match=f"the tensor '{name}' is"):
            spec_of(path)


def test_tensors_of_another_architecture(tmp_path: Path) -> None:
    metadata = tiny_metadata("qwen2", layers=1)
    tensors = tiny_tensors({**metadata, "qwen2.attention.key_length": 32})
    tensors["blk.0.attn_q_norm.weight"] = tensors["blk.0.attn_q.bias"][:32]
    path = write_gguf(tmp_path / "x", metadata, tensors)
    with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_q_norm\.weight' belongs to a feature"):
        spec_of(path)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "message"),
    [
        ("llama", "attention.sliding_window", 0, "is 0; it must be from 1 to"),
        ("gemma3", "attention.sliding_window", 0, "is 0; it must be from 1 to"),
        ("gemma3", "attention.sliding_window", 1 << 31, "it must be from 1 to"),
        ("gemma3", "attention.sliding_window", 64.0, "must hold a whole number, it holds a number"),
        ("gemma3", "attention.sliding_window_pattern", [True], "must be a whole number, or a list"),
        ("gemma3", "attention.sliding_window_pattern", [1, 0], "must be a whole number, or a list"),
        (
            "gemma3",
            "attention.sliding_window_pattern",
            1 << 20,
            "must be a whole number, or a list",
        ),
        ("gemma3", "rope.freq_base_swa", 0.5, "is 0.5; it must be above 1 and finite"),
        ("gemma3", "final_logit_softcapping", 30.0, "is 30.0, which is not supported"),
        ("gemma3", "attention.key_length_swa", 32, "is 32, which is not supported"),
        ("llama", "attention.sliding_window_pattern", 2, "is 2, which is not supported"),
        ("llama", "rope.freq_base_swa", 10000.0, "is 10000.0, which is not supported"),
        ("qwen2", "attention.sliding_window", 4096, "is 4096, which is not supported"),
        ("qwen3", "attention.sliding_window", 4096, "is 4096, which is not supported"),
        ("qwen3", "expert_count", 128, "is 128, which is not supported"),
        ("qwen2", "attention.head_count_kv", 3, "is 3; it must divide the 4 heads"),
        ("qwen3", "attention.head_count", 0, "is 0; it must be from 1 to"),
    ],
)
def test_refusals(tmp_path: Path, architecture: str, key: str, value: Any, message: str) -> None:
    path = write_tiny(tmp_path / "x", architecture, extra={f"{architecture}.{key}": value})
    with pytest.raises(ModelFileError) as caught:
        spec_of(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert f"'{architecture}.{key}'" in line
    assert message in line
    assert line.isprintable()
