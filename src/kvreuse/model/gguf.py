"""GGUF -> ModelSpec: reads what the forward pass needs to know, and checks all that it will read.

After ``read_spec`` a loader cannot fail: every tensor of the forward pass is there, in the shape
that the metadata says, in a type that the kernels serve, and no tensor of the file is left unused.
Source of the keys and tensor names: the GGUF specification and the writers of the ``gguf`` package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from kvreuse.errors import ModelFileError

from .container import GGUFFile, TensorInfo
from .ggml import GGMLType
from .header import shown
from .spec import ModelSpec, RopeSpec

__all__ = [
    "MATRIX_TYPES",
    "NORM_TYPES",
    "GGMLType",
    "GGUFFile",
    "TensorInfo",
    "check_tensors",
    "expected_tensors",
    "read_spec",
]

MATRIX_TYPES = frozenset(
    {GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q8_0, GGMLType.F16, GGMLType.BF16, GGMLType.F32}
)
NORM_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})

WIDTH_MULTIPLE = 32  # of every row of a matrix: the kernels' group
MAX_HEAD_DIM = 256
MAX_POSITION = (1 << 31) - 1  # positions are int32

# Keys of ``llama`` that change the computation, and the value that leaves it as it is here.
NEUTRAL: dict[str, Any] = {
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attention.sliding_window": 0,
    "embedding_scale": 0.0,
    "expert_count": 0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "rope.scale_linear": 1.0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none",
    "tensor_data_layout": "Meta AI original pth",
    "use_parallel_residual": False,
}


def read_spec(file: GGUFFile) -> ModelSpec:
    """The spec of a model whose tensors have been checked against it.

    Raises ``ModelFileError``, with one line: an unsupported architecture, feature or tensor type, a
    missing key or tensor, a value out of range, shapes that disagree.
    """
    architecture = file.get("general.architecture", str)
    if architecture != "llama":
        _fail(file, f"the architecture {shown(architecture)} is not supported (supported: 'llama')")
    if (parts := file.get("split.count", int, 1)) > 1:
        _fail(file, f"is one of {parts} parts of a split model; join them with gguf-split first")
    spec = _read_llama(file)
    check_tensors(file, spec)
    return spec


def _read_llama(file: GGUFFile) -> ModelSpec:
    for suffix, neutral in NEUTRAL.items():
        value = file.metadata.get(f"llama.{suffix}", neutral)
        if isinstance(value, np.ndarray) or value != neutral:
            _fail(file, f"'llama.{suffix}' is {_brief(value)}, which is not supported")
    layers = _positive(file, "llama.block_count", at_most=len(file.tensors))
    hidden = _positive(file, "llama.embedding_length")
    heads = _positive(file, "llama.attention.head_count")
    kv_heads = _kv_heads(file, heads)
    head_dim = _head_dim(file, hidden, heads)
    return ModelSpec(
        architecture="llama",
        num_layers=layers,
        hidden_size=_width(file, "llama.embedding_length", hidden),
        intermediate_size=_width(
            file, "llama.feed_forward_length", _positive(file, "llama.feed_forward_length")
        ),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=_positive(file, "llama.context_length"),
        rms_norm_eps=_real(file, "llama.attention.layer_norm_rms_epsilon", None),
        rope=_rope(file, head_dim),
        tied_embeddings="output.weight" not in file.tensors,
        windows=(None,) * layers,
    )


def expected_tensors(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor that the forward pass reads; matrices are 2-D, norms 1-D."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    yield "token_embd.weight", (spec.vocab_size, hidden)
    yield "output_norm.weight", (hidden,)
    if not spec.tied_embeddings:
        yield "output.weight", (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"blk.{layer}."
        yield f"{prefix}attn_norm.weight", (hidden,)
        yield f"{prefix}attn_q.weight", (spec.q_size, hidden)
        yield f"{prefix}attn_k.weight", (spec.kv_size, hidden)
        yield f"{prefix}attn_v.weight", (spec.kv_size, hidden)
        yield f"{prefix}attn_output.weight", (hidden, spec.q_size)
        yield f"{prefix}ffn_norm.weight", (hidden,)
        yield f"{prefix}ffn_gate.weight", (ffn, hidden)
        yield f"{prefix}ffn_up.weight", (ffn, hidden)
        yield f"{prefix}ffn_down.weight", (hidden, ffn)


def check_tensors(file: GGUFFile, spec: ModelSpec) -> None:
    """Every tensor of ``expected_tensors`` is there in shape and type, and there is no other.

    A tensor that we would not read (a bias, RoPE factors, experts) means another computation than
    ours. Raises ``ModelFileError``.
    """
    expected = dict(expected_tensors(spec))
    for name, shape in expected.items():
        if (tensor := file.tensors.get(name)) is None:
            _fail(file, f"the tensor {shown(name)} is missing")
        if tensor.shape != shape:
            _fail(file, f"the tensor {shown(name)} is {_dims(tensor.shape)}, not {_dims(shape)}")
        allowed = MATRIX_TYPES if len(shape) == 2 else NORM_TYPES
        if tensor.type not in allowed:
            names = ", ".join(kind.name for kind in sorted(allowed))
            kind = tensor.type.name
            _fail(file, f"{shown(name)} has the tensor type {kind}; supported here: {names}")
    if unknown := next((name for name in file.tensors if name not in expected), None):
        _fail(file, f"the tensor {shown(unknown)} belongs to a feature that is not supported")


def _kv_heads(file: GGUFFile, heads: int) -> int:
    """Heads of K and V; a file may also give one number a layer, which must then all be equal."""
    key = "llama.attention.head_count_kv"
    value = file.metadata.get(key, heads)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = value[0].item()
    if type(value) is not int or not 0 < value <= heads or heads % value:
        _fail(file, f"'{key}' is {_brief(value)}; it must divide the {heads} heads")
    return value


def _head_dim(file: GGUFFile, hidden: int, heads: int) -> int:
    """Channels of a head: ``key_length``, or the hidden size split among the heads."""
    if "llama.attention.key_length" in file.metadata:
        head_dim = _positive(file, "llama.attention.key_length")
    elif hidden % heads:
        _fail(file, f"the hidden size {hidden} does not split among {heads} heads")
    else:
        head_dim = hidden // heads
    if file.get("llama.attention.value_length", int, head_dim) != head_dim:
        _fail(file, "keys and values have heads of different size, which is not supported")
    if head_dim % WIDTH_MULTIPLE or head_dim > MAX_HEAD_DIM:
        _fail(file, f"head size {head_dim} is not supported (multiples of 32 up to {MAX_HEAD_DIM})")
    return head_dim


def _rope(file: GGUFFile, head_dim: int) -> RopeSpec:
    key = "llama.rope.dimension_count"
    dims = _positive(file, key, at_most=head_dim) if key in file.metadata else head_dim
    if dims % 2:
        _fail(file, f"'{key}' is {dims}; channels rotate in pairs")
    base = _real(file, "llama.rope.freq_base", 10000.0)
    return RopeSpec(pairs="interleaved", base=base, dims=dims)


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding, which are as many as the tokenizer has tokens."""
    if (embedding := file.tensors.get("token_embd.weight")) is None:
        _fail(file, "the tensor 'token_embd.weight' is missing")
    rows = embedding.shape[0]
    if file.get("llama.vocab_size", int, rows) != rows:
        _fail(file, f"'llama.vocab_size' is not the {rows} rows of 'token_embd.weight'")
    tokens = file.get("tokenizer.ggml.tokens", list, None)
    if tokens is not None and len(tokens) != rows:
        _fail(file, f"the vocabulary has {len(tokens)} tokens, 'token_embd.weight' {rows} rows")
    return rows


def _positive(file: GGUFFile, key: str, at_most: int = MAX_POSITION) -> int:
    value = file.get(key, int)
    if not 0 < value <= at_most:
        _fail(file, f"'{key}' is {value}; it must be from 1 to {at_most}")
    return value


def _width(file: GGUFFile, key: str, value: int) -> int:
    if value % WIDTH_MULTIPLE:
        _fail(file, f"'{key}' is {value}; it must be a multiple of {WIDTH_MULTIPLE}")
    return value


def _real(file: GGUFFile, key: str, default: float | None) -> float:
    value = file.get(key, float) if default is None else file.get(key, float, default)
    if not 0.0 < value < math.inf:
        _fail(file, f"'{key}' is {value}; it must be above 0 and finite")
    return value


def _dims(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _brief(value: Any) -> str:
    return shown(value if isinstance(value, str) else " ".join(repr(value).split()))


def _fail(file: GGUFFile, message: str) -> NoReturn:
    raise ModelFileError(f"{file.path}: {message}")
