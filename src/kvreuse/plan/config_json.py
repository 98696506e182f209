"""A model's config.json, as the Hugging Face Hub has it, to the shape of the model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvreuse.errors import ModelFileError
from kvreuse.plan.families import FAMILIES, HEADS, head_dim
from kvreuse.plan.fields import LONGEST, Fields
from kvreuse.plan.hybrids import HYBRIDS
from kvreuse.shape import CacheShape, ModelShape, RopeSpec

MAX_BYTES = 1 << 24
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models of more than text keep the part that we want to know of."""
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")

READERS = {**FAMILIES, **HYBRIDS}

SERVED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma3_text"})
"""Model types that this engine serves, from GGUF files."""
SIZES = ("hidden_size", "intermediate_size", "vocab_size")
"""What the buffers of a step depend on besides the layers."""

# A nested configuration leaves out what equals the defaults of its class.
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "num_hidden_layers": 26,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
    "vocab_size": 262208,
}
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
    },
    "gemma3_text": _GEMMA3,
    "gemma3n_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 15,
        "sliding_window": 512,
        "max_position_embeddings": 32768,
    },
    "gemma4_text": {"num_kv_shared_layers": 0, "global_head_dim": 512, "head_dim": 256},
    "llama4_text": {
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 48,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 131072,
    },
}
_INNER_TYPES = {name: f"{name}_text" for name in ("gemma3", "gemma3n", "gemma4", "llama4")}


def read_config(path: Path) -> dict[str, Any]:
    """The object that a config.json holds. ModelFileError for anything else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{path}: is too large for a config.json")
        text = path.read_bytes().decode("utf-8-sig")
        config = json.loads(text)
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ModelFileError(f"{path}: is nested too deeply for a config.json") from None
    except json.JSONDecodeError as error:
        raise ModelFileError(
            f"{path}: is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # a number of thousands of digits
        raise ModelFileError(f"{path}: holds a number that is absurdly long") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: must hold a JSON object, as a model's config.json does")
    return config


def text_fields(config: Mapping[str, Any], where: str) -> Fields:
    """The fields of the language model: those of the whole, or of the part nested in it."""
    fields = Fields(config, where)
    for name in NESTED:
        inner = fields.inner(name)
        if inner is None or _model_type(fields) in READERS:
            continue
        if any(deeper in inner for deeper in NESTED):
            return text_fields(inner.values, inner.where)
        kind = _model_type(inner) or _INNER_TYPES.get(_model_type(fields) or "")
        kind = _INNER_TYPES.get(kind or "", kind)
        defaults = DEFAULTS.get(kind or "", {})
        said = {key: value for key, value in inner.values.items() if value is not None}
        # A window that is null is no window, not a default.
        nulls = {key: None for key, value in inner.values.items() if value is None}
        return Fields({**defaults, **nulls, **said, "model_type": kind}, inner.where)
    return fields


def shape_of(fields: Fields) -> CacheShape:
    """The shape of a model: a ModelShape where this engine serves the architecture.

    ModelFileError as for ``cache_shape_of``.
    """
    cache = cache_shape_of(fields)
    limit, known = cache.context_length, all(name in fields for name in SIZES)
    if cache.architecture in SERVED and limit is not None and known:
        return _served(fields, cache, limit)
    return cache


def cache_shape_of(fields: Fields) -> CacheShape:
    """What the layers keep. ModelFileError, listing what was read, for an unknown architecture."""
    kind = _model_type(fields)
    kind = _INNER_TYPES.get(kind or "", kind)
    if kind is None or kind not in READERS:
        fields.fail(
            f"the architecture is not known here, so its memory is not either "
            f"(read: {fields.listing()})"
        )
    return CacheShape(kind, READERS[kind](fields), fields.optional(*CONTEXT, most=LONGEST))


def _served(fields: Fields, cache: CacheShape, context_length: int) -> ModelShape:
    """The shape by which the buffers of a step are counted.

    What no size depends on is not read: the epsilon of the norms, and base and scaling of the
    rotary embedding.
    """
    rope = RopeSpec("half", base=10_000.0, dims=head_dim(fields))
    gemma = cache.architecture == "gemma3_text"
    return ModelShape(
        architecture=cache.architecture,
        layers=cache.layers,
        context_length=context_length,
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_heads=fields.count(*HEADS),
        vocab_size=fields.count("vocab_size", most=1 << 31),
        rms_norm_eps=1e-6,
        rope=rope,
        local_rope=dataclasses.replace(rope, base=1e6) if gemma else None,
        post_norms=gemma,
    )


def _model_type(fields: Fields) -> str | None:
    value = fields.values.get("model_type")
    return value if isinstance(value, str) else None
