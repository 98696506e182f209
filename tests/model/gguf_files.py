"""Tiny GGUF files with random weights and a real vocabulary, written with the ``gguf`` package.

``write_tiny_llama`` makes a complete model that any other test can load in milliseconds; the
smaller pieces (``llama_metadata``, ``llama_tensors``, ``write_gguf``) are for files that lie.
"""

from __future__ import annotations

import functools
import json
import math
import pydoc_data.topics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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


def llama_metadata(
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    hidden: int = 64,
    ffn: int = 96,
    vocab: int = 320,
    context: int = 512,
    rope_base: float = 10000.0,
    eps: float = 1e-5,
) -> dict[str, Any]:
    """All keys of a ``llama`` model of this geometry, its tokenizer's included."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": eps,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": rope_base,
        "llama.vocab_size": vocab,
        **tokenizer_metadata(vocab),
    }


def llama_tensors(
    metadata: Mapping[str, Any], *, seed: int = 0, tied: bool = True
) -> dict[str, Floats]:
    """Random weights in the shapes that ``metadata`` says, scaled to keep activations near 1."""
    rng = np.random.default_rng(seed)
    hidden: int = metadata["llama.embedding_length"]
    ffn: int = metadata["llama.feed_forward_length"]
    head_dim: int = metadata["llama.attention.key_length"]
    vocab: int = metadata["llama.vocab_size"]
    q_size = metadata["llama.attention.head_count"] * head_dim
    kv_size = metadata["llama.attention.head_count_kv"] * head_dim

    def matrix(rows: int, cols: int) -> Floats:
        return rng.normal(0, 1 / math.sqrt(cols), (rows, cols)).astype(np.float32)

    def norm() -> Floats:
        return rng.normal(1, 0.1, hidden).astype(np.float32)

    tensors = {"token_embd.weight": matrix(vocab, hidden), "output_norm.weight": norm()}
    if not tied:
        tensors["output.weight"] = matrix(vocab, hidden)
    for layer in range(metadata["llama.block_count"]):
        prefix = f"blk.{layer}."
        tensors[f"{prefix}attn_norm.weight"] = norm()
        tensors[f"{prefix}attn_q.weight"] = matrix(q_size, hidden)
        tensors[f"{prefix}attn_k.weight"] = matrix(kv_size, hidden)
        tensors[f"{prefix}attn_v.weight"] = matrix(kv_size, hidden)
        tensors[f"{prefix}attn_output.weight"] = matrix(hidden, q_size)
        tensors[f"{prefix}ffn_norm.weight"] = norm()
        tensors[f"{prefix}ffn_gate.weight"] = matrix(ffn, hidden)
        tensors[f"{prefix}ffn_up.weight"] = matrix(ffn, hidden)
        tensors[f"{prefix}ffn_down.weight"] = matrix(hidden, ffn)
    return tensors


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Floats],
    types: Mapping[str, str] | None = None,
) -> Path:
    """Write a file; ``types`` names the type of a tensor (``Q4_1``), float32 otherwise."""
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, weights in tensors.items():
        kind = gguf.GGMLQuantizationType[(types or {}).get(name, "F32")]
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
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


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    matrix_type: str = "Q4_1",
    embed_type: str = "Q8_0",
    norm_type: str = "F32",
    tied: bool = True,
    extra: Mapping[str, Any] | None = None,
    **geometry: Any,
) -> Path:
    """A complete ``llama`` model in a file, in milliseconds; returns ``path``.

    ``geometry`` is that of ``llama_metadata`` (layers, heads, kv_heads, head_dim, hidden, ffn,
    vocab, context, rope_base, eps); ``extra`` adds or replaces keys, or with ``None`` takes them
    out. ``embed_type`` is the type of ``token_embd`` and ``output`` (there is one unless ``tied``).
    """
    metadata = llama_metadata(**geometry)
    tensors = llama_tensors(metadata, seed=seed, tied=tied)
    embeddings = dict.fromkeys(("token_embd.weight", "output.weight"), embed_type)
    types = {
        name: embeddings.get(name, matrix_type if weights.ndim == 2 else norm_type)
        for name, weights in tensors.items()
    }
    keys = {key: value for key, value in {**metadata, **(extra or {})}.items() if value is not None}
    return write_gguf(path, keys, tensors, types)
