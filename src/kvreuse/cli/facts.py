"""What ``kvreuse info`` tells of this machine and of a model, as plain values."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.model.fetch.source import resolve
from kvreuse.model.gguf.ggml import PACKINGS
from kvreuse.model.gguf.read import GGUFFile, read_spec
from kvreuse.ops import native
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
    with GGUFFile(resolve(name)) as file:
        spec = read_spec(file)
        layout = KVLayout.of(spec)
        return {
            "file": str(file.path),
            "file_bytes": file.path.stat().st_size,
            "architecture": spec.architecture,
            "layers": spec.num_layers,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "windows": list(spec.windows),
            "rope": _rope_facts(spec.rope),
            "local_rope": _rope_facts(spec.local_rope) if spec.local_rope else None,
            "vocabulary": spec.vocab_size,
            "context": spec.context_length,
            "chat_template": file.get("tokenizer.chat_template", str, None) is not None,
            "kv_codec": layout.codec.name,
            "kv_bytes_per_token": layout.bytes_per_token,
            "page_size": layout.page_size,
            "page_bytes": layout.page_bytes,
            "memory": _memory_facts(
                plan_engine(file, spec, layout, CONFIG, native.NativeBackend())
            ),
            "tensors": _tensor_facts(file),
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


def _tensor_facts(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """For each type of tensor: how many there are, their bytes, and what they are repacked to.

    ``change`` says what that does to the weights; how much is known once they are loaded
    (``LLM.repacked``).
    """
    return {
        kind.name: {
            "count": count,
            "bytes": sum(tensor.nbytes for tensor in file.tensors.values() if tensor.type == kind),
            "packed": PACKINGS[kind].layout,
            "change": PACKINGS[kind].change,
        }
        for kind, count in file.tensor_types().items()
    }
