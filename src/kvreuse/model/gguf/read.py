"""GGUF -> ModelShape: reads what the forward pass needs to know, and checks all that it will read.

After ``read_spec`` a loader cannot fail: every tensor of the forward pass is there, in the shape
that the metadata says, in a type that the kernels serve, and no tensor of the file is left unused.
Source of the keys and tensor names: the GGUF specification and the writers of the ``gguf`` package.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvreuse.model.gguf.architectures import ARCHITECTURES
from kvreuse.model.gguf.container import GGUFFile, TensorInfo
from kvreuse.model.gguf.ggml import PACKINGS, GGMLType
from kvreuse.model.gguf.header import shown
from kvreuse.model.gguf.keys import Keys
from kvreuse.model.gguf.rope_keys import FACTORS
from kvreuse.shape import ModelShape

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

MATRIX_TYPES = frozenset(PACKINGS)
NORM_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})

Shape = tuple[int, ...]


def read_spec(file: GGUFFile) -> ModelShape:
    """The spec of a model whose tensors have been checked against it.

    Raises ``ModelFileError``, with one line: an unsupported architecture, feature or tensor type, a
    missing key or tensor, a value out of range, shapes that disagree.
    """
    keys = Keys(file, file.get("general.architecture", str))
    if (read := ARCHITECTURES.get(keys.architecture)) is None:
        known = ", ".join(map(repr, ARCHITECTURES))
        name = shown(keys.architecture)
        keys.fail(f"the architecture {name} is not supported (supported: {known})")
    if (parts := file.get("split.count", int, 1)) > 1:
        keys.fail(f"is one of {parts} parts of a split model; join them with gguf-split first")
    spec = read(keys)
    check_tensors(file, spec)
    return spec


def expected_tensors(spec: ModelShape) -> Iterator[tuple[str, Shape]]:
    """(name, shape) of every tensor of the model; matrices are 2-D, norms and biases 1-D."""
    yield "token_embd.weight", (spec.vocab_size, spec.hidden_size)
    yield "output_norm.weight", (spec.hidden_size,)
    if not spec.tied_embeddings:
        yield "output.weight", (spec.vocab_size, spec.hidden_size)
    if spec.rope.scaling == "factors":
        yield FACTORS, (spec.rope.dims // 2,)
    for layer in range(spec.num_layers):
        for name, shape in _layer_tensors(spec):
            yield f"blk.{layer}.{name}", shape


def _layer_tensors(spec: ModelShape) -> Iterator[tuple[str, Shape]]:
    """Those of one layer, without its prefix."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    yield "attn_norm.weight", (hidden,)
    yield "attn_q.weight", (spec.q_size, hidden)
    yield "attn_k.weight", (spec.kv_size, hidden)
    yield "attn_v.weight", (spec.kv_size, hidden)
    yield "attn_output.weight", (hidden, spec.q_size)
    yield "ffn_norm.weight", (hidden,)
    yield "ffn_gate.weight", (ffn, hidden)
    yield "ffn_up.weight", (ffn, hidden)
    yield "ffn_down.weight", (hidden, ffn)
    if spec.qkv_bias:
        yield "attn_q.bias", (spec.q_size,)
        yield "attn_k.bias", (spec.kv_size,)
        yield "attn_v.bias", (spec.kv_size,)
    if spec.qk_norm:
        yield "attn_q_norm.weight", (spec.head_dim,)
        yield "attn_k_norm.weight", (spec.head_dim,)
    if spec.post_norms:
        yield "post_attention_norm.weight", (hidden,)
        yield "post_ffw_norm.weight", (hidden,)


def check_tensors(file: GGUFFile, spec: ModelShape) -> None:
    """Every tensor of ``expected_tensors`` is there in shape and type, and there is no other.

    A tensor that we would not read (another bias, experts) means another computation than ours.
    Raises ``ModelFileError``.
    """
    keys = Keys(file, spec.architecture)
    expected = dict(expected_tensors(spec))
    for name, shape in expected.items():
        if (tensor := file.tensors.get(name)) is None:
            keys.fail(f"the tensor {shown(name)} is missing")
        if tensor.shape != shape:
            keys.fail(f"the tensor {shown(name)} is {_dims(tensor.shape)}, not {_dims(shape)}")
        allowed = MATRIX_TYPES if len(shape) == 2 else NORM_TYPES
        if tensor.type not in allowed:
            names = ", ".join(kind.name for kind in sorted(allowed))
            kind = tensor.type.name
            keys.fail(f"{shown(name)} has the tensor type {kind}; supported here: {names}")
    if unknown := next((name for name in file.tensors if name not in expected), None):
        keys.fail(f"the tensor {shown(unknown)} belongs to a feature that is not supported")


def _dims(shape: Shape) -> str:
    return " x ".join(map(str, shape))
