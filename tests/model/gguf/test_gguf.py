"""From a file's metadata to a ModelShape, and what is refused on the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.open import open_checkpoint
from kvreuse.model.tensors import weights_of
from kvreuse.ops.tensor_types import MATRIX_TYPES
from kvreuse.shape import ModelShape, RopeSpec, attention

from .gguf_files import Floats, llama_metadata, llama_tensors, write_gguf, write_tiny_llama

Change = Callable[[dict[str, Any], dict[str, Floats], dict[str, str]], object]


def spec_of(path: Path) -> ModelShape:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.shape


def changed(tmp_path: Path, change: Change) -> Path:
    """A tiny model whose metadata, tensors or tensor types a test has changed."""
    metadata, types = llama_metadata(layers=1), {"token_embd.weight": "Q8_0"}
    tensors = llama_tensors(metadata)
    change(metadata, tensors, types)
    return write_gguf(tmp_path / "model.gguf", metadata, tensors, types)


def test_the_real_model(model_path: Path) -> None:
    assert spec_of(model_path) == ModelShape(
        architecture="llama",
        layers=(attention(3, 64),) * 30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        vocab_size=49152,
        context_length=8192,
        rms_norm_eps=float(np.float32(1e-5)),
        rope=RopeSpec(pairs="interleaved", base=100000.0, dims=64),
        tied_embeddings=True,
    )


@pytest.mark.parametrize("kind", sorted(kind.name for kind in MATRIX_TYPES))
@pytest.mark.parametrize("norm", ["F32", "F16", "BF16"])
def test_every_supported_type(tmp_path: Path, kind: str, norm: str) -> None:
    path = write_tiny_llama(
        tmp_path / "x",
        layers=1,
        hidden=256,
        ffn=256,
        head_dim=64,
        matrix_type=kind,
        embed_type=kind,
        norm_type=norm,
        tied=False,
    )
    with open_checkpoint(path) as checkpoint:
        spec = checkpoint.shape
        assert not spec.tied_embeddings
        assert {tensor.type.name for tensor in checkpoint.tensors.values()} == {kind, norm}
        assert dict(weights_of(spec)).keys() == checkpoint.tensors.keys()


def test_defaults_of_missing_keys(tmp_path: Path) -> None:
    metadata = llama_metadata(heads=2, layers=1)
    tensors = llama_tensors(metadata)
    for key in (
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.vocab_size",
    ):
        del metadata[key]
    spec = spec_of(write_gguf(tmp_path / "x", metadata, tensors))
    assert (spec.head_dim, spec.num_kv_heads, spec.vocab_size) == (32, 2, 320)
    assert spec.rope == RopeSpec(pairs="interleaved", base=10000.0, dims=32)


def test_one_number_of_kv_heads_a_layer(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "x", extra={"llama.attention.head_count_kv": [2, 2]})
    assert spec_of(path).num_kv_heads == 2
    path = write_tiny_llama(tmp_path / "y", extra={"llama.attention.head_count_kv": [2, 1]})
    with pytest.raises(ModelFileError, match="it must divide the 4 heads"):
        spec_of(path)


def setting(key: str, value: Any) -> Change:
    return lambda metadata, tensors, types: metadata.update({key: value})


def without(key: str) -> Change:
    return lambda metadata, tensors, types: metadata.pop(key)


def replacing(name: str, shape: tuple[int, ...] | None, kind: str = "F32") -> Change:
    """Another shape (``None``: no such tensor) or type for a tensor."""

    def change(metadata: dict[str, Any], tensors: dict[str, Floats], types: dict[str, str]) -> None:
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = np.zeros(shape, np.float32)
            types[name] = kind

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("general.architecture", "mamba"), "the architecture 'mamba' is not supported"),
        (setting("split.count", 3), "is one of 3 parts of a split model"),
        (without("llama.block_count"), "the key 'llama.block_count' is missing"),
        (without("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon' is missing"),
        (without("llama.context_length"), "the key 'llama.context_length' is missing"),
        (setting("llama.block_count", 0), "'llama.block_count' is 0; it must be from 1 to 11"),
        (setting("llama.block_count", 4_000_000_000), "it must be from 1 to 11"),
        (setting("llama.block_count", 2), "the tensor 'blk.1.attn_norm.weight' is missing"),
        (setting("llama.block_count", "2"), "must hold a whole number, it holds text"),
        (setting("llama.context_length", 1 << 31), "it must be from 1 to 2147483647"),
        (setting("llama.embedding_length", 72), "is 72; it must be a multiple of 32"),
        (setting("llama.feed_forward_length", 100), "is 100; it must be a multiple of 32"),
        (setting("llama.attention.head_count_kv", 3), "is 3; it must divide the 4 heads"),
        (setting("llama.attention.head_count_kv", 0), "is 0; it must divide the 4 heads"),
        (setting("llama.attention.head_count_kv", 0.5), "is 0.5; it must divide the 4 heads"),
        (setting("llama.attention.key_length", 16), "keys and values have heads of different size"),
        (setting("llama.attention.value_length", 64), "heads of different size"),
        (setting("llama.attention.head_count", 8), "'blk.0.attn_q.weight' is 128 x 64, not 256 x"),
        (setting("llama.rope.dimension_count", 33), "is 33; it must be from 1 to 32"),
        (setting("llama.rope.dimension_count", 31), "is 31; channels rotate in pairs"),
        (setting("llama.rope.freq_base", 0.0), "is 0.0; it must be above 1 and finite"),
        (setting("llama.rope.freq_base", float("nan")), "is nan; it must be above 1 and finite"),
        (setting("llama.attention.layer_norm_rms_epsilon", -1.0), "is -1.0; it must be above 0"),
        (setting("llama.expert_count", 8), "'llama.expert_count' is 8, which is not supported"),
        (setting("llama.attention.sliding_window", [1, 2]), "must hold a whole number, it holds a"),
        (setting("llama.attention.scale", [1, 2]), "'llama.attention.scale' is array([1, 2]"),
        (setting("llama.rope.dimension_sections", 0), "dimension_sections' is 0, which is not"),
        (setting("llama.vocab_size", 321), "'llama.vocab_size' is not the 320 rows"),
        (setting("tokenizer.ggml.tokens", ["a"]), "the vocabulary has 1 tokens, 'token_embd"),
        (replacing("token_embd.weight", None), "the tensor 'token_embd.weight' is missing"),
        (replacing("token_embd.weight", (320,)), "'token_embd.weight' is 320, not 320 x 64"),
        (
            replacing("token_embd.weight", (320, 32)),
            "'token_embd.weight' is 320 x 32, not 320 x 64",
        ),
        (replacing("output_norm.weight", (32,)), "'output_norm.weight' is 32, not 64"),
        (replacing("output.weight", (300, 64)), "'output.weight' is 300 x 64, not 320 x 64"),
        (replacing("blk.0.ffn_down.weight", None), "'blk.0.ffn_down.weight' is missing"),
        (replacing("blk.0.ffn_up.weight", (64, 96)), "is 64 x 96, not 96 x 64"),
        (
            replacing("blk.0.ffn_up.weight", (96, 256), "TQ1_0"),
            "'blk.0.ffn_up.weight' is 96 x 256, not 96 x 64",
        ),
        (
            replacing("output.weight", (320, 64), "MXFP4"),
            "'output.weight' has the tensor type MXFP4; supported here: F32, F16, Q4_0, Q4_1, Q5_0",
        ),
        (
            replacing("output_norm.weight", (64,), "Q8_0"),
            "'output_norm.weight' has the tensor type Q8_0; supported here: F32, F16, BF16",
        ),
        (replacing("blk.0.attn_q.bias", (128,)), "the tensor 'blk.0.attn_k.bias' is missing"),
        (replacing("blk.0.attn_k.bias", (64,)), "'blk.0.attn_k.bias' belongs to a feature that is"),
        (
            replacing("blk.0.attn_output.bias", (64,)),
            "'blk.0.attn_output.bias' belongs to a feature that is not supported",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(tmp_path: Path, change: Change, message: str) -> None:
    path = changed(tmp_path, change)
    with pytest.raises(ModelFileError) as caught:
        spec_of(path)
    line = str(caught.value)
    assert message in line
    assert line.startswith(f"{path}: ")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("heads", "head_dim", "message"),
    [
        (4, 24, "head size 24 is not supported (multiples of 16 up to 256)"),
        (1, 288, "head size 288 is not supported (multiples of 16 up to 256)"),
        (3, 80, "3 heads of size 80 are not supported: together they are no multiple of 32"),
    ],
)
def test_head_sizes(tmp_path: Path, heads: int, head_dim: int, message: str) -> None:
    path = write_tiny_llama(
        tmp_path / "x", heads=heads, kv_heads=1, head_dim=head_dim, layers=1, matrix_type="F32"
    )
    with pytest.raises(ModelFileError, match=re.escape(message)):
        spec_of(path)


@pytest.mark.parametrize("head_dim", [16, 32, 80, 96, 128, 256])
def test_head_sizes_that_are_served(tmp_path: Path, head_dim: int) -> None:
    assert spec_of(write_tiny_llama(tmp_path / "x", head_dim=head_dim)).head_dim == head_dim


def test_hidden_size_that_does_not_split_among_heads(tmp_path: Path) -> None:
    def change(metadata: dict[str, Any], *_: Any) -> None:
        del metadata["llama.attention.key_length"]
        metadata |= {"llama.attention.head_count": 3, "llama.attention.head_count_kv": 1}

    with pytest.raises(ModelFileError, match="the hidden size 64 does not split among 3 heads"):
        spec_of(changed(tmp_path, change))
