"""GGUF metadata to the fields of a config.json, for architectures that this engine does not serve.

Sources: the GGUF specification and the converters of the ``gguf`` package. Only what the memory of
keys and values depends on is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvreuse.model.gguf.container import GGUFFile

_PLAIN = (
    *("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "phi2", "gemma", "falcon", "gptneox"),
    *("gpt2", "starcoder", "starcoder2", "command-r", "olmo", "olmo2", "olmoe", "granite"),
    *("granitemoe", "stablelm", "bloom", "mpt", "internlm2", "chatglm", "glm4", "glm4moe"),
    *("minicpm", "nemotron", "exaone", "dbrx", "smollm3", "orion", "baichuan", "refact", "grok"),
)
# With a window: the pattern of the converters where the file does not say it (every n-th layer
# sees all; 0: none does).
_WINDOWS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "phi3": 0, "exaone4": 4}

KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "attention_chunk_size": "attention.chunk_size",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
}


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """Fields as a config.json has them; ``model_type`` is a family with the same memory.

    For an architecture that is not known here, the file's own name of it.
    """
    name = file.get("general.architecture", str)
    config = {field: _plain(file.metadata.get(f"{name}.{key}")) for field, key in KEYS.items()}
    heads = config["num_key_value_heads"]
    if isinstance(heads, list) and heads and all(count == heads[0] for count in heads):
        config["num_key_value_heads"] = heads = heads[0]
    config["model_type"] = name
    if name in _PLAIN or name in _WINDOWS:
        config["model_type"] = "deci" if isinstance(heads, list) else "llama"
        config["num_key_value_heads_per_layer"] = heads if isinstance(heads, list) else None
        if not isinstance(heads, list) and config["sliding_window"] is not None:
            config |= _windows(file, name)
    elif name == "deepseek2":
        config["model_type"] = "deepseek_v2"
    elif name == "llama4":
        config["model_type"] = "llama4_text"
    return config


def _windows(file: GGUFFile, name: str) -> Mapping[str, Any]:
    """The family and the fields of a file with a window."""
    pattern = _plain(file.metadata.get(f"{name}.attention.sliding_window_pattern"))
    if name in _PLAIN and pattern is None:
        # Of these, Mistral and Starcoder 2 have their window on all layers.
        return {"model_type": "mistral"} if name in ("llama", "starcoder2") else {}
    pattern = _WINDOWS.get(name, 0) if pattern is None else pattern
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if limited else "full_attention" for limited in pattern]
        return {"model_type": "mistral", "layer_types": kinds}
    if pattern == 0:
        return {"model_type": "mistral"}
    return {"model_type": "gemma2", "sliding_window_pattern": pattern}


def _plain(value: Any) -> Any:
    """Arrays as lists."""
    return value.tolist() if isinstance(value, np.ndarray) else value
