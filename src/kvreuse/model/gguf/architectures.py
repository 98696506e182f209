"""From a file's keys to a ModelShape: one small function for each architecture.

An architecture that needs nothing new of the decoder takes a function here and a line in
``ARCHITECTURES``; nothing else changes.

Sources: the GGUF specification, the converters that write these files (package ``gguf``), and the
models' own configurations (``config.json``) for what the files leave out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvreuse.errors import shown
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.keys import WIDTH_MULTIPLE, Keys
from kvreuse.model.gguf.names import tensor_name
from kvreuse.model.gguf.rope_keys import read_rope
from kvreuse.model.tensors import Role, Weight
from kvreuse.shape import LayerShape, ModelShape, RopePairs, RopeSpec, attention

MAX_HEAD_DIM = 256
HEAD_MULTIPLE = 16
MAX_WINDOW_EVERY = 1 << 16
EMBEDDING = tensor_name(Weight(Role.EMBEDDING))

# Keys that would change the computation, and the value with which they do not (None: every value
# does).
NEUTRAL: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.key_length_swa": None,
    "attention.max_alibi_bias": 0.0,
    "attention.output_scale": 0.0,
    "attention.scale": 0.0,
    "attention.shared_kv_layers": 0,
    "attention.temperature_length": None,
    "attention.temperature_scale": 0.0,
    "attention.value_length_swa": None,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 0.0,
    "expert_count": 0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "rope.dimension_count_swa": None,
    "rope.dimension_sections": None,
    "rope.scaling.alpha": None,
    "tensor_data_layout": "Meta AI original pth",
    "use_parallel_residual": False,
}
NO_WINDOWS: dict[str, Any] = {
    "attention.sliding_window": None,
    "attention.sliding_window_pattern": None,
    "rope.freq_base_swa": None,
}


def read_shape(file: GGUFFile) -> ModelShape:
    """The shape that a file's keys describe; its tensors are not checked here.

    Raises ``ModelFileError`` for an architecture, a feature or a size that is not supported, a
    missing key, a value out of range.
    """
    keys = Keys(file, file.get("general.architecture", str))
    if (read := ARCHITECTURES.get(keys.architecture)) is None:
        known = ", ".join(map(repr, ARCHITECTURES))
        name = shown(keys.architecture)
        keys.fail(f"the architecture {name} is not supported (supported: {known})")
    if (parts := file.get("split.count", int, 1)) > 1:
        keys.fail(f"is one of {parts} parts of a split model; join them with gguf-split first")
    return read(keys)


def llama(keys: Keys) -> ModelShape:
    """Llama 1 to 3, Mistral, TinyLlama, SmolLM: pairs interleaved; Mistral 7B v0.1 has a window."""
    keys.refuse({"rope.freq_base_swa": None})
    shape = _common(keys, "interleaved")
    return dataclasses.replace(
        shape,
        layers=_with_windows(keys, shape.layers, full_every=0),
        qkv_bias=tensor_name(Weight(Role.QUERY_BIAS, 0)) in keys.file.tensors,
    )


def qwen2(keys: Keys) -> ModelShape:
    """Qwen 2 and 2.5: a bias on queries, keys and values."""
    keys.refuse(NO_WINDOWS)
    return dataclasses.replace(_common(keys, "half"), qkv_bias=True)


def qwen3(keys: Keys) -> ModelShape:
    """Qwen 3: heads of queries and keys are normalised."""
    keys.refuse(NO_WINDOWS)
    return dataclasses.replace(_common(keys, "half"), qk_norm=True)


def gemma3(keys: Keys) -> ModelShape:
    """Gemma 3: windows on five layers of six; these have their own base and are not scaled.

    The largest model (62 layers) scales scores by hidden size / heads, which is not the size of
    its heads; files do not say so.
    """
    shape = _common(keys, "half", default_base=1_000_000.0)
    local_base = keys.real("rope.freq_base_swa", 10_000.0, above=1.0)
    largest = shape.num_layers == 62
    return dataclasses.replace(
        shape,
        activation="gelu_tanh",
        embedding_scale=math.sqrt(shape.hidden_size),
        qk_norm=True,
        post_norms=True,
        layers=_with_windows(keys, shape.layers, full_every=6),
        local_rope=RopeSpec("half", local_base, shape.rope.dims),
        attention_scale=(shape.hidden_size / shape.num_heads) ** -0.5 if largest else None,
    )


ARCHITECTURES: Mapping[str, Callable[[Keys], ModelShape]] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma3": gemma3,
}
"""The architectures that the decoder serves, by the name that a file gives."""


def _common(keys: Keys, pairs: RopePairs, default_base: float = 10_000.0) -> ModelShape:
    """The shape of a Llama, which the other architectures change in some points."""
    keys.refuse(NEUTRAL)
    layers = keys.count("block_count", at_most=len(keys.file.tensors))
    hidden = keys.width("embedding_length")
    heads = keys.count("attention.head_count")
    head_dim = _head_dim(keys, hidden, heads)
    return ModelShape(
        architecture=keys.architecture,
        layers=(attention(_kv_heads(keys, heads), head_dim),) * layers,
        context_length=keys.count("context_length"),
        hidden_size=hidden,
        intermediate_size=keys.width("feed_forward_length"),
        num_heads=heads,
        vocab_size=_vocab_size(keys),
        rms_norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        rope=read_rope(keys, head_dim, pairs, default_base),
        tied_embeddings=tensor_name(Weight(Role.LOGITS)) not in keys.file.tensors,
    )


def _with_windows(
    keys: Keys, layers: tuple[LayerShape, ...], full_every: int
) -> tuple[LayerShape, ...]:
    """The layers with the windows that the file says they have."""
    windows = _windows(keys, len(layers), full_every)
    return tuple(
        dataclasses.replace(layer, window=window)
        for layer, window in zip(layers, windows, strict=True)
    )


def _windows(keys: Keys, layers: int, full_every: int) -> tuple[int | None, ...]:
    """The window of each layer, all None where the file has none.

    ``attention.sliding_window_pattern`` is a list that says for each layer whether it has the
    window, or a number n: every n-th layer sees all tokens; 0: no layer does. ``full_every`` is the
    number where the key is missing.
    """
    if "attention.sliding_window" not in keys:
        keys.refuse({"attention.sliding_window_pattern": None})
        return (None,) * layers
    window = keys.count("attention.sliding_window")
    pattern = keys.raw("attention.sliding_window_pattern", full_every)
    if isinstance(pattern, np.ndarray) and pattern.dtype == np.bool_ and len(pattern) == layers:
        return tuple(window if limited else None for limited in pattern.tolist())
    if type(pattern) is not int or not 0 <= pattern <= MAX_WINDOW_EVERY:
        key = keys.name("attention.sliding_window_pattern")
        keys.fail(
            f"'{key}' is {shown(pattern)}; it must be a whole number, or a list with true or false "
            "for each layer"
        )
    return tuple(None if pattern and (i + 1) % pattern == 0 else window for i in range(layers))


def _kv_heads(keys: Keys, heads: int) -> int:
    """Heads of K and V. A file may have one number for each layer; they must all be equal."""
    value = keys.raw("attention.head_count_kv", heads)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = value[0].item()
    if type(value) is not int or not 0 < value <= heads or heads % value:
        key = keys.name("attention.head_count_kv")
        keys.fail(f"'{key}' is {shown(value)}; it must divide the {heads} heads")
    return value


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """Channels of a head: ``key_length``, else the hidden size divided by the heads."""
    if "attention.key_length" in keys:
        head_dim = keys.count("attention.key_length")
    elif hidden % heads:
        keys.fail(f"the hidden size {hidden} does not split among {heads} heads")
    else:
        head_dim = hidden // heads
    if keys.count("attention.value_length", head_dim) != head_dim:
        keys.fail("keys and values have heads of different size, which is not supported")
    if head_dim % HEAD_MULTIPLE or head_dim > MAX_HEAD_DIM:
        keys.fail(f"head size {head_dim} is not supported (multiples of 16 up to {MAX_HEAD_DIM})")
    if heads * head_dim % WIDTH_MULTIPLE:
        keys.fail(
            f"{heads} heads of size {head_dim} are not supported: together they are no multiple of "
            f"{WIDTH_MULTIPLE}"
        )
    return head_dim


def _vocab_size(keys: Keys) -> int:
    """Rows of the embedding; the tokenizer must have as many tokens."""
    file = keys.file
    if (embedding := file.tensors.get(EMBEDDING)) is None:
        keys.fail(f"the tensor '{EMBEDDING}' is missing")
    rows = embedding.shape[0]
    if keys.count("vocab_size", rows) != rows:
        keys.fail(f"'{keys.name('vocab_size')}' is not the {rows} rows of '{EMBEDDING}'")
    tokens = file.get("tokenizer.ggml.tokens", list, None)
    if tokens is not None and len(tokens) != rows:
        keys.fail(f"the vocabulary has {len(tokens)} tokens, '{EMBEDDING}' {rows} rows")
    return rows
