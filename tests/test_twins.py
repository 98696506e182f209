"""The engine's forward pass is its NumPy twin's, to the last bit, on every path of this CPU."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.decoder import load_decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.ops import reference
from kvreuse.ops.batch import BatchInput
from kvreuse.ops.native import NativeBackend
from kvreuse.shape import ModelShape

from .kv_codecs import MIXTURES, codec_for
from .model.gguf.gguf_files import tiny_metadata, tiny_tensors, write_gguf, write_tiny

Ints = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Pages = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A tiny model, and two sequences computed together in shuffled pages."""

    name: str
    architecture: str = "llama"
    lengths: tuple[int, int] = (70, 35)
    page_size: int = 32
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of ``write_tiny``."""
    smallest: int = 0
    """Weights are scaled by random powers of two down to this exponent, if not 0."""
    codec: str = "bf16"
    first: int = 0
    """The first pair of plane codecs of ``auto``."""

    def __str__(self) -> str:
        return self.name if self.codec == "bf16" else f"{self.codec}: {self.name}"

    def layout(self, shape: ModelShape) -> KVLayout:
        return KVLayout.of(shape, self.page_size, codec_for(shape, self.codec, self.first))

    def write(self, path: Path) -> Path:
        if not self.smallest:
            return write_tiny(path, self.architecture, context=2048, **self.model)
        metadata = tiny_metadata(self.architecture, context=2048)
        rng = np.random.default_rng(0)
        tensors = {
            name: w * np.exp2(rng.integers(self.smallest, 1, w.shape)).astype(np.float32)
            for name, w in tiny_tensors(metadata).items()
        }
        return write_gguf(path, metadata, tensors)

    def batch(self, shape: ModelShape) -> BatchInput:
        rng = np.random.default_rng(1)
        counts = [-(-n // self.page_size) for n in self.lengths]
        pages = rng.permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((2, max(counts)), dtype=np.int32)
        tables[0, : counts[0]], tables[1, : counts[1]] = pages[: counts[0]], pages[counts[0] :]
        positions = [np.arange(n, dtype=np.int32) for n in self.lengths]
        rows = sum(self.lengths)
        return BatchInput(
            ids=rng.integers(0, shape.vocab_size, rows).astype(np.int32),
            positions=np.concatenate(positions),
            row_seq=np.repeat(np.arange(2, dtype=np.int32), self.lengths),
            tables=tables,
            kv_len=np.array(self.lengths, dtype=np.int32),
            sample_rows=np.arange(rows, dtype=np.int32),
        )


Options = dict[str, Any]


def types(matrix: str, embed: str) -> Options:
    return {"matrix_type": matrix, "embed_type": embed, "tied": matrix != embed}


def heads(head_dim: int, query: int, kv: int) -> Options:
    return {"head_dim": head_dim, "heads": query, "kv_heads": kv}


def window(tokens: int, *, layers: int = 1, pattern: int = 0) -> Options:
    return {"window": tokens, "layers": layers, "pattern": pattern}


def scaling(kind: str, **numbers: float) -> Options:
    return {"scaling": {"type": kind, **numbers}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context_length": 64}
WIDE = {"hidden": 256, "ffn": 512, "heads": 8}  # rows that hold blocks of 256 weights
MIXED = {
    "blk.0.attn_q.weight": "Q5_K",
    "blk.0.attn_v.weight": "Q6_K",
    "blk.0.ffn_up.weight": "Q5_0",
    "blk.1.attn_k.weight": "Q8_0",
    "blk.1.ffn_gate.weight": "F16",
    "blk.1.ffn_down.weight": "Q5_1",
}

CASES = (
    *(Case(kind, model=types(kind, kind)) for kind in ("F32", "F16", "BF16", "Q4_0", "Q8_0")),
    Case("Q4_1", model=types("Q4_1", "Q8_0")),
    *(Case(kind, model=types(kind, kind)) for kind in ("Q5_0", "Q5_1")),
    *(Case(kind, model=WIDE | types(kind, kind)) for kind in ("Q4_K", "Q5_K", "Q6_K")),
    Case("mixed", model=WIDE | types("Q4_K", "Q6_K") | {"types": MIXED}),
    Case("head_dim 64, 3 to 1", lengths=(33, 64), page_size=64, model=heads(64, 3, 1)),
    Case("head_dim 80, 4 to 1", lengths=(20, 40), model=heads(80, 8, 2)),
    Case("head_dim 96, 4 to 1", lengths=(20, 40), model=heads(96, 8, 2)),
    Case("head_dim 128, 1 to 1", lengths=(31, 97), page_size=96, model=heads(128, 2, 2)),
    Case("head_dim 256, 2 to 1", lengths=(20, 40), model=heads(256, 2, 1)),
    Case("three parts", lengths=(1030, 5), model={"layers": 1, "heads": 4}),
    Case("denormals", smallest=-140),
    Case("qwen2", "qwen2", model=heads(64, 7, 1)),
    Case("qwen3", "qwen3", model=heads(128, 4, 2)),
    Case("qwen3, half a head rotates", "qwen3", model=heads(96, 4, 2) | {"rope_dims": 48}),
    Case("gemma3", "gemma3", lengths=(200, 35), model=heads(256, 4, 1)),
    Case(
        "gemma3, windows over parts",
        "gemma3",
        lengths=(1100, 600),
        model=window(512, layers=2, pattern=2) | scaling("linear", factor=8.0),
    ),
    Case("window of 1", lengths=(70, 65), model=window(1)),
    Case("window of 33", lengths=(140, 33), model=window(33)),
    Case("window of 100 over parts", lengths=(1030, 620), model=window(100)),
    Case("window of 600 over parts", lengths=(1140, 601), model=window(600)),
    Case("biases in llama", model={"bias": True}),
    Case("linear", model=scaling("linear", factor=4.0)),
    Case("llama3", model=scaling("llama3", factor=8.0, **LLAMA3)),
    Case("yarn", "qwen2", model=scaling("yarn", factor=4.0, original_context_length=512)),
    Case("factors", model={"rope_factors": np.geomspace(1, 8, 16).tolist()}),
)


QUANTISED = (
    Case("denormals", smallest=-140),
    Case("head_dim 64, 3 to 1", lengths=(33, 64), page_size=64, model=heads(64, 3, 1)),
    Case("head_dim 80, 4 to 1", lengths=(20, 70), model=heads(80, 8, 2) | {"layers": 3}),
    Case("head_dim 96, 4 to 1", lengths=(20, 40), model=heads(96, 8, 2)),
    Case("head_dim 128, 1 to 1", lengths=(31, 97), page_size=96, model=heads(128, 2, 2)),
    Case("head_dim 256, 2 to 1", lengths=(20, 40), model=heads(256, 2, 1)),
    Case("three parts", lengths=(1030, 5), model={"layers": 1, "heads": 4}),
    Case("qwen2", "qwen2", model=heads(64, 7, 1)),
    Case("qwen3, half a head rotates", "qwen3", model=heads(96, 4, 2) | {"rope_dims": 48}),
    Case("gemma3", "gemma3", lengths=(200, 35), model=heads(256, 4, 1)),
    Case("window of 33", lengths=(140, 33), model=window(33)),
    Case("window of 600 over parts", lengths=(1140, 601), model=window(600)),
)
CASES += tuple(
    dataclasses.replace(case, codec=codec, first=4 * i)
    for i, case in enumerate(QUANTISED)
    for codec in ("int8", "int4", "k8v4", "auto")
    if codec != "k8v4" or i < 2  # nothing that the others do not have
)


@functools.cache
def model_file(case: Case) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        return open_checkpoint(case.write(Path(folder) / "model.gguf"))  # mapped: outlives its name


@functools.cache
def twin(case: Case) -> tuple[Float32, Pages]:
    """Logits and pages of the NumPy forward pass."""
    checkpoint = model_file(case)
    shape = checkpoint.shape
    layout = case.layout(shape)
    weights = {
        tensor.name: reference.matrix(
            int(tensor.type), checkpoint.data(tensor), *(1, *tensor.shape)[-2:]
        )
        for tensor in checkpoint.tensors.values()
    }
    pages = unwritten(layout, case)
    return reference.forward(shape, weights, case.batch(shape), pages, layout), pages


def unwritten(layout: KVLayout, case: Case) -> Pages:
    """Pages full of NaN."""
    count = sum(layout.pages_for(n) for n in case.lengths)
    return np.full((count, layout.page_bytes), 0xFF, dtype=np.uint8)


def steps(whole: BatchInput, alone: int) -> Iterator[tuple[Ints, BatchInput]]:
    """The rows of a batch in several: all but the last few of each sequence, then these singly.

    Also where in the whole batch the rows of each step are.
    """
    for left in range(alone, -1, -1):
        last = whole.kv_len - np.int32(left)
        at = whole.positions + np.int32(1)
        mine = at <= last[whole.row_seq] if left == alone else at == last[whole.row_seq]
        rows = np.flatnonzero(mine).astype(np.int32)
        yield (
            rows,
            BatchInput(
                ids=whole.ids[rows],
                positions=whole.positions[rows],
                row_seq=whole.row_seq[rows],
                tables=whole.tables,
                kv_len=last,
                sample_rows=np.arange(len(rows), dtype=np.int32),
            ),
        )


@pytest.mark.parametrize("alone", [0, 2], ids=["at once", "last rows singly"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_engine_and_twin_are_equal(case: Case, alone: int, isa: str) -> None:
    logits, pages = twin(case)
    checkpoint = model_file(case)
    shape = checkpoint.shape
    layout = case.layout(shape)
    backend = NativeBackend(isa, threads=2)
    pool = backend.pool(layout, len(pages))
    pool.data[:] = unwritten(layout, case)
    rows = sum(case.lengths)
    config = EngineConfig(
        model="tiny",
        page_size=case.page_size,
        max_num_batched_tokens=rows,
        max_num_seqs=rows,
    )
    decoder = load_decoder(checkpoint, backend, pool, config)
    for where, batch in steps(case.batch(shape), alone):
        np.testing.assert_array_equal(decoder.run(batch), logits[where])
    np.testing.assert_array_equal(pool.data, pages)


def test_the_cases_have_every_mixture_of_codecs() -> None:
    pairs = set()
    for case in CASES:
        layout = case.layout(model_file(case).shape)
        for layer, kind, head in layout.planes():
            if kind == "key":
                value = layout.plane_codec(layer, "value", head)
                pairs.add((layout.plane_codec(layer, kind, head).name, value.name))
    assert len(pairs) == MIXTURES
