"""What is planned for buffers and weights is what a backend takes, to the byte."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from kvreuse.kv.layout import KVLayout
from kvreuse.model.decoder import Decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.model.weights import load_weights
from kvreuse.ops.backend import Backend
from kvreuse.ops.native import NativeBackend
from kvreuse.ops.reference import ReferenceBackend
from kvreuse.plan.buffers import StepShape, buffer_bytes
from kvreuse.plan.weights import packed_bytes
from kvreuse.shape import attention

from ..model.gguf.gguf_files import write_tiny

BACKENDS: dict[str, Backend] = {
    "one thread": NativeBackend(threads=1),
    "five threads": NativeBackend(threads=5),
    "reference": ReferenceBackend(),
}
HEADS = [(heads, kv) for heads, kv in itertools.product((1, 4, 8, 32), (1, 2, 8)) if kv <= heads]
STEPS = ((1, 1, 32, 32), (512, 64, 8192, 32), (33, 40, 1000, 96), (1024, 1, 40_000, 64))
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"window": 20}),
    "wide": ("llama", {"hidden": 2048, "ffn": 4096, "vocab": 1024, "tied": False}),
    "biases": ("qwen2", {}),
    "windows and two rotary embeddings": ("gemma3", {}),
    **{
        f"{heads} heads, {kv} for keys": ("llama", {"heads": heads, "kv_heads": kv})
        for heads, kv in HEADS
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_buffers_take_what_was_planned(name: str, tmp_path: Path) -> None:
    architecture, options = MODELS[name]
    path = write_tiny(tmp_path / "x.gguf", architecture, layers=1, **options)
    for backend in BACKENDS.values():
        with open_checkpoint(path) as checkpoint:
            shape = checkpoint.shape
            weights = load_weights(checkpoint, backend)
            assert weights.nbytes == packed_bytes(checkpoint.tensors.values(), backend)
        for tokens, sequences, positions, page_size in STEPS:
            pool = backend.pool(KVLayout.of(shape, page_size), 1)
            step = StepShape(backend, tokens, sequences, positions, page_size)
            decoder = Decoder(shape, weights, backend, pool, step.limits)
            assert decoder.nbytes == buffer_bytes(shape, step)


def test_multi_head_attention_is_planned_with_the_scratch_that_it_takes(tmp_path: Path) -> None:
    """Items of 64 tokens at one head a group: scratch of 64 rows, for each thread."""
    path = write_tiny(tmp_path / "x.gguf", heads=8, kv_heads=8, head_dim=128)
    with open_checkpoint(path) as checkpoint:
        shape = checkpoint.shape
    few, more = (
        buffer_bytes(shape, StepShape(NativeBackend(threads=threads))) for threads in (1, 2)
    )
    assert more - few > 64 * 3 * 128 * 4


@pytest.mark.parametrize("wide", [{}, {"num_heads": 1 << 24, "layers": (attention(1, 1 << 24),)}])
def test_what_no_machine_could_run_still_has_a_size(wide: dict[str, Any], tmp_path: Path) -> None:
    """The planner looks for what fits among any numbers of tokens and sequences."""
    with open_checkpoint(write_tiny(tmp_path / "x.gguf")) as checkpoint:
        shape = dataclasses.replace(checkpoint.shape, **wide)
    backend = NativeBackend(threads=1)
    sizes = [
        buffer_bytes(shape, StepShape(backend, 512, 1 << power, 1 << power)) for power in range(41)
    ]
    assert sizes == sorted(set(sizes))
    assert sizes[40] > 1 << 70
