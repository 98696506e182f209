"""The twin of the whole forward pass: against the oracle, and the law that it must keep."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.kv.layout import KVLayout
from kvreuse.model.open import open_checkpoint
from kvreuse.ops import reference as ref
from kvreuse.ops.batch import BatchInput
from kvreuse.shape import ModelShape, RopeSpec, attention

from ..model.gguf.gguf_files import write_tiny, write_tiny_llama
from ..oracle import Oracle, compare

Ints = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

SPEC = ModelShape(
    architecture="llama",
    layers=(attention(2, 32),) * 2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    vocab_size=320,
    context_length=512,
    rms_norm_eps=1e-5,
    rope=RopeSpec(pairs="interleaved", base=10000.0, dims=32),
    tied_embeddings=True,
)
LAYOUT = KVLayout.of(SPEC)
IDS = np.random.default_rng(7).integers(0, 320, 75).astype(np.int32)


class Model:
    """A tiny file's weights and some pages."""

    def __init__(self, path: Path, spec: ModelShape = SPEC) -> None:
        self.spec = spec
        self.weights = {
            tensor.name: ref.matrix(
                int(tensor.tensor_type),
                np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8),
                int(np.prod(tensor.shape[1:], dtype=np.int64)),
                int(tensor.shape[0]),
            )
            for tensor in gguf.GGUFReader(path).tensors
        }
        self.pages = np.full((8, LAYOUT.page_bytes), 0xFF, dtype=np.uint8)

    def run(self, start: int, stop: int, table: Ints) -> Float32:
        """Logits of tokens ``start`` to ``stop`` of one sequence; those before are in pages."""
        rows = np.arange(stop - start, dtype=np.int32)
        step = BatchInput.of_one(IDS[start:stop], start, table, rows)
        return ref.forward(self.spec, self.weights, step, self.pages, LAYOUT)


TABLE = np.array([6, 1, 4], dtype=np.int32)


def spec_of(path: Path) -> ModelShape:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.shape


@pytest.mark.parametrize(
    ("matrix_type", "mean_kl", "top1"), [("F32", 2e-5, 0.97), ("Q4_1", 2e-3, 0.85)]
)
def test_agrees_with_the_oracle(
    tmp_path: Path, matrix_type: str, mean_kl: float, top1: float
) -> None:
    """With dense weights only keys and values are rounded; with integers, activations too."""
    embed_type = "F32" if matrix_type == "F32" else "Q8_0"
    path = write_tiny_llama(tmp_path / "m.gguf", matrix_type=matrix_type, embed_type=embed_type)
    found = compare(Oracle(path).logits(IDS.tolist()), Model(path).run(0, 75, TABLE), IDS.tolist())
    assert found.mean_kl < mean_kl
    assert found.top1 >= top1
    assert abs(found.perplexity_ratio - 1) < 0.02


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context_length": 64}


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {"bias": True}),
        ("llama", {"window": 20}),
        ("llama", {"rope_dims": 16, "tied": False}),
        ("llama", {"rope_factors": np.geomspace(1, 8, 16).tolist()}),
        ("llama", {"scaling": {"type": "linear", "factor": 4.0}}),
        ("llama", {"scaling": {"type": "llama3", "factor": 8.0, **LLAMA3}}),
        ("qwen2", {}),
        ("qwen2", {"scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 512}}),
        ("qwen3", {}),
        ("gemma3", {"scaling": {"type": "linear", "factor": 8.0}}),
    ],
)
def test_other_decoders_agree_with_the_oracle(
    tmp_path: Path, architecture: str, options: dict[str, Any]
) -> None:
    options = {"matrix_type": "F32", "embed_type": "F32", **options}
    path = write_tiny(tmp_path / "m.gguf", architecture, **options)
    logits = Model(path, spec_of(path)).run(0, 75, TABLE)
    found = compare(Oracle(path).logits(IDS.tolist()), logits, IDS.tolist())
    assert found.mean_kl < 2e-5
    assert found.top1 >= 0.95


def test_neither_chunks_nor_pages_change_a_bit(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    whole = Model(path).run(0, 75, TABLE)
    model, other = Model(path), np.array([0, 7, 2], dtype=np.int32)
    cuts = (0, 1, 8, 24, 57, 75)
    chunks = [model.run(a, b, other) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


def test_a_copied_page_serves_as_well(tmp_path: Path) -> None:
    model = Model(write_tiny_llama(tmp_path / "m.gguf"))
    whole = model.run(0, 75, TABLE)
    # the last page's first 5 rows are shared, the rest is computed again in a page of its own
    table, sampled = np.array([6, 1, 3], dtype=np.int32), np.array([0, 5], dtype=np.int32)
    alone = BatchInput.of_one(IDS[69:], 69, table, sampled)
    step = dataclasses.replace(alone, copies=((4, 3, 5),))
    logits = ref.forward(SPEC, model.weights, step, model.pages, LAYOUT)
    np.testing.assert_array_equal(logits, whole[[69, 74]])
