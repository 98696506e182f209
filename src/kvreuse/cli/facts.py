"""What ``kvreuse info`` tells of this machine and of a model, as plain values."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from typing import Any

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.ops import native
from kvreuse.ops.tensor_types import PACKINGS
from kvreuse.plan.engine import EnginePlan, plan_engine
from kvreuse.shape import RopeSpec
from kvreuse.sizes import available_memory

CONFIG = EngineConfig(model="any")
"""The settings of an engine that is started without any."""


def machine_facts() -> dict[str, Any]:
    """CPU, kernels and memory of this machine. Sizes in bytes."""
    backend = native.NativeBackend()
    forced = os.environ.get(native.ISA_VARIABLE)
    reason = f"{native.ISA_VARIABLE} says so" if forced else "the fastest this machine has"
    return {
        "cpu": native.cpu_name(),
        "isa": backend.isa,
        "isa_reason": reason,
        "isa_paths": [dataclasses.asdict(path) for path in native.cpu_report()],
        "threads": backend.threads,
        "memory_available": available_memory(),
        "kv_cache_memory": CONFIG.kv_cache_bytes(),
    }


def model_facts(name: str) -> dict[str, Any]:
    """Shape, KV cost and tensors of a model, read without loading it. Sizes in bytes."""
    with open_checkpoint(resolve(name)) as checkpoint:
        shape = checkpoint.shape
        plan = plan_engine(checkpoint, KVLayout.of(shape), CONFIG, native.NativeBackend())
        layout = plan.pool.layout
        return {
            "file": str(checkpoint.path),
            "file_bytes": checkpoint.path.stat().st_size,
            "architecture": shape.architecture,
            "layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "heads": shape.num_heads,
            "kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "windows": list(shape.windows),
            "rope": _rope_facts(shape.rope),
            "local_rope": _rope_facts(shape.local_rope) if shape.local_rope else None,
            "vocabulary": shape.vocab_size,
            "context": shape.context_length,
            "chat_template": "default" in checkpoint.chat_templates,
            "kv_codec": layout.codec.name,
            "kv_bytes_per_token": layout.bytes_per_token,
            "page_size": layout.page_size,
            "page_bytes": layout.page_bytes,
            "memory": _memory_facts(plan),
            "tensors": _tensor_facts(checkpoint),
        }


def _memory_facts(plan: EnginePlan) -> dict[str, Any]:
    """What an engine takes by default, in bytes."""
    return {
        "weights": plan.weights,
        "buffers": plan.buffers,
        "process": plan.process,
        "kv_cache": plan.pool.nbytes,
        "pages": plan.pool.num_pages,
        "tokens": plan.pool.num_tokens,
        "total": plan.total,
        "in_words": str(plan),
    }


def _rope_facts(rope: RopeSpec) -> dict[str, Any]:
    """The rotary embedding: its base, the channels that turn, and how it is scaled."""
    return {
        "base": rope.base,
        "dims": rope.dims,
        "scaling": rope.scaling,
        **dict(rope.scaling_params),
    }


def _tensor_facts(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """For each type of tensor, the most frequent first: how many there are, their bytes, and what
    they are repacked to.

    ``change`` says in words how that changes the weights; ``LLM.repacked`` says by how much, once
    they are loaded.
    """
    tensors = checkpoint.tensors.values()
    return {
        kind.name: {
            "count": count,
            "bytes": sum(tensor.nbytes for tensor in tensors if tensor.type == kind),
            "packed": PACKINGS[kind].layout,
            "change": PACKINGS[kind].change,
        }
        for kind, count in Counter(tensor.type for tensor in tensors).most_common()
    }
