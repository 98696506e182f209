"""Tiny GGUF files with random weights and a real vocabulary, written with the ``gguf`` package.

``write_tiny`` makes a complete model of any architecture that any other test can load in
milliseconds; the smaller pieces (``tiny_metadata``, ``tiny_tensors``, ``write_gguf``) are for files
that lie. Those named after ``llama`` are short for it.
"""

from __future__ import annotations

import functools
import json
import math
import pydoc_data.topics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from .random_blocks import BLOCKS

Floats = npt.NDArray[np.float32]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB = len(SPECIAL) + 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.lru_cache
def vocabulary(size: int) -> tuple[list[str], list[str], list[int]]:
    """(tokens, merges, kinds): three control tokens, all 256 bytes, and merges of English text.

    Trained on the help texts of the standard library, so the same for one version of Python. Where
    these have too few merges, the rest is filled with tokens that no text contains.
    """
    if size < MIN_VOCAB:
        raise ValueError(f"a vocabulary has at least {MIN_VOCAB} tokens")
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "".join(list(pydoc_data.topics.topics.values())[:20])
    pipeline.train_from_iterator([text], trainer)
    ids = pipeline.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in _merges(pipeline)]
    kinds = [int(gguf.TokenType.CONTROL)] * len(SPECIAL)
    kinds += [int(gguf.TokenType.NORMAL)] * (len(tokens) - len(SPECIAL))
    for index in range(len(tokens), size):
        tokens.append(f"[UNUSED{index}]")
        kinds.append(int(gguf.TokenType.UNUSED))
    return tokens, merges, kinds


def _merges(pipeline: Tokenizer) -> list[Any]:
    """The merges in the order of their rank, which the package shows in its JSON alone."""
    return list(json.loads(pipeline.to_str())["model"]["merges"])


def tokenizer_metadata(vocab: int, pre: str = "smollm") -> dict[str, Any]:
    """The keys of a byte-level BPE tokenizer of ``vocab`` tokens, with a ChatML template."""
    tokens, merges, kinds = vocabulary(vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_metadata(
    architecture: str = "llama",
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    hidden: int = 64,
    ffn: int = 96,
    vocab: int = 320,
    context: int = 512,
    rope_base: float | None = None,
    rope_dims: int | None = None,
    local_rope_base: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    window: int | None = None,
    pattern: int | list[bool] | None = None,
    eps: float = 1e-5,
) -> dict[str, Any]:
    """All keys of a model of this geometry, its tokenizer's included.

    ``scaling`` holds keys under ``rope.scaling`` (``type``, ``factor``, ...). ``window`` and
    ``pattern`` are those of sliding windows; ``gemma3`` has by itself a window of 64, sees all on
    every second layer, and has a larger base there. The tokenizer is always a byte-level BPE.
    """
    if architecture == "gemma3":
        window, pattern = window or 64, 2 if pattern is None else pattern
        rope_base = rope_base or 1e6
    keys = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": pattern,
        "rope.dimension_count": rope_dims or head_dim,
        "rope.freq_base": rope_base or 1e4,
        "rope.freq_base_swa": local_rope_base,
        "vocab_size": vocab,
        **{f"rope.scaling.{key}": value for key, value in (scaling or {}).items()},
    }
    return {
        "general.architecture": architecture,
        "general.name": "tiny",
        **{f"{architecture}.{key}": value for key, value in keys.items() if value is not None},
        **tokenizer_metadata(vocab, "qwen2" if architecture.startswith("qwen") else "smollm"),
    }


def tiny_tensors(
    metadata: Mapping[str, Any],
    *,
    seed: int = 0,
    tied: bool = True,
    bias: bool | None = None,
    rope_factors: Sequence[float] | None = None,
) -> dict[str, Floats]:
    """Random weights in the shapes that ``metadata`` says, scaled to keep activations near 1.

    ``bias`` is that of queries, keys and values, by default where the architecture has one.
    ``rope_factors`` become ``rope_freqs.weight``.
    """
    architecture: str = metadata["general.architecture"]
    rng = np.random.default_rng(seed)

    def key(name: str) -> int:
        return int(metadata[f"{architecture}.{name}"])

    def matrix(rows: int, cols: int) -> Floats:
        return rng.normal(0, 1 / math.sqrt(cols), (rows, cols)).astype(np.float32)

    def norm(size: int) -> Floats:
        return rng.normal(1, 0.1, size).astype(np.float32)

    hidden, ffn, vocab = key("embedding_length"), key("feed_forward_length"), key("vocab_size")
    head_dim = key("attention.key_length")
    q_size = key("attention.head_count") * head_dim
    kv_size = key("attention.head_count_kv") * head_dim
    tensors = {"token_embd.weight": matrix(vocab, hidden), "output_norm.weight": norm(hidden)}
    if not tied:
        tensors["output.weight"] = matrix(vocab, hidden)
    if rope_factors is not None:
        tensors["rope_freqs.weight"] = np.array(rope_factors, np.float32)
    for layer in range(key("block_count")):
        prefix = f"blk.{layer}."
        tensors[f"{prefix}attn_norm.weight"] = norm(hidden)
        tensors[f"{prefix}attn_q.weight"] = matrix(q_size, hidden)
        tensors[f"{prefix}attn_k.weight"] = matrix(kv_size, hidden)
        tensors[f"{prefix}attn_v.weight"] = matrix(kv_size, hidden)
        tensors[f"{prefix}attn_output.weight"] = matrix(hidden, q_size)
        tensors[f"{prefix}ffn_norm.weight"] = norm(hidden)
        tensors[f"{prefix}ffn_gate.weight"] = matrix(ffn, hidden)
        tensors[f"{prefix}ffn_up.weight"] = matrix(ffn, hidden)
        tensors[f"{prefix}ffn_down.weight"] = matrix(hidden, ffn)
        if bias or (bias is None and architecture == "qwen2"):
            for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
                tensors[f"{prefix}attn_{name}.bias"] = rng.normal(0, 1, size).astype(np.float32)
        if architecture in {"qwen3", "gemma3"}:
            tensors[f"{prefix}attn_q_norm.weight"] = norm(head_dim)
            tensors[f"{prefix}attn_k_norm.weight"] = norm(head_dim)
        if architecture == "gemma3":
            tensors[f"{prefix}post_attention_norm.weight"] = norm(hidden)
            tensors[f"{prefix}post_ffw_norm.weight"] = norm(hidden)
    return tensors


def llama_metadata(**geometry: Any) -> dict[str, Any]:
    """``tiny_metadata`` of a ``llama``."""
    return tiny_metadata("llama", **geometry)


def llama_tensors(metadata: Mapping[str, Any], **options: Any) -> dict[str, Floats]:
    """``tiny_tensors``, for the metadata of a ``llama``."""
    return tiny_tensors(metadata, **options)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Floats],
    types: Mapping[str, str] | None = None,
) -> Path:
    """Write a file; ``types`` names the type of a tensor (``Q4_1``), float32 otherwise.

    The package does not quantise to the types of 256 weights (``Q4_K``): such a tensor gets random
    weights of the same size instead of the given ones.
    """
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, weights in tensors.items():
        kind = gguf.GGMLQuantizationType[(types or {}).get(name, "F32")]
        random = BLOCKS.get(kind.name)
        data = random(weights) if random else gguf.quants.quantize(weights, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One key, in the type that converters give it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_tiny(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    matrix_type: str = "Q4_1",
    embed_type: str = "Q8_0",
    norm_type: str = "F32",
    types: Mapping[str, str] | None = None,
    tied: bool = True,
    bias: bool | None = None,
    rope_factors: Sequence[float] | None = None,
    extra: Mapping[str, Any] | None = None,
    **geometry: Any,
) -> Path:
    """A complete model in a file, in milliseconds; returns ``path``.

    ``geometry`` is that of ``tiny_metadata`` (layers, heads, kv_heads, head_dim, hidden, ffn,
    vocab, context, window, scaling, ...); ``extra`` adds or replaces keys, or with ``None`` takes
    them out. ``embed_type`` is the type of ``token_embd`` and ``output`` (there is one unless
    ``tied``); ``types`` names those of single tensors. ``bias`` and ``rope_factors`` are those of
    ``tiny_tensors``.
    """
    metadata = tiny_metadata(architecture, **geometry)
    tensors = tiny_tensors(metadata, seed=seed, tied=tied, bias=bias, rope_factors=rope_factors)
    kinds = {
        name: matrix_type if weights.ndim == 2 else norm_type for name, weights in tensors.items()
    }
    kinds |= dict.fromkeys(("token_embd.weight", "output.weight"), embed_type)
    kinds |= {"rope_freqs.weight": "F32", **(types or {})}
    keys = {key: value for key, value in {**metadata, **(extra or {})}.items() if value is not None}
    return write_gguf(path, keys, tensors, kinds)


def write_tiny_llama(path: Path, **options: Any) -> Path:
    """``write_tiny`` of a ``llama``."""
    return write_tiny(path, "llama", **options)
