"""The engine's forward pass is its NumPy twin's, to the last bit, on every path of this CPU."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.model.gguf import GGUFFile, read_spec
from kvreuse.model.spec import ModelSpec
from kvreuse.ops import reference
from kvreuse.request import BatchInput
from kvreuse.runner import load_runner

from .model.gguf_files import llama_metadata, llama_tensors, write_gguf, write_tiny_llama

Ints = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Pages = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Case:
    """A tiny model, and two sequences computed together in shuffled pages."""

    name: str
    lengths: tuple[int, int] = (70, 35)
    page_size: int = 32
    model: tuple[tuple[str, Any], ...] = ()
    smallest: int = 0
    """Weights are scaled by random powers of two down to this exponent, if not 0."""

    def write(self, path: Path) -> Path:
        if not self.smallest:
            return write_tiny_llama(path, context=2048, **dict(self.model))
        metadata = llama_metadata(context=2048)
        rng = np.random.default_rng(0)
        tensors = {
            name: w * np.exp2(rng.integers(self.smallest, 1, w.shape)).astype(np.float32)
            for name, w in llama_tensors(metadata).items()
        }
        return write_gguf(path, metadata, tensors)

    def batch(self, spec: ModelSpec) -> BatchInput:
        rng = np.random.default_rng(1)
        counts = [-(-n // self.page_size) for n in self.lengths]
        pages = rng.permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((2, max(counts)), dtype=np.int32)
        tables[0, : counts[0]], tables[1, : counts[1]] = pages[: counts[0]], pages[counts[0] :]
        positions = [np.arange(n, dtype=np.int32) for n in self.lengths]
        rows = sum(self.lengths)
        return BatchInput(
            ids=rng.integers(0, spec.vocab_size, rows).astype(np.int32),
            positions=np.concatenate(positions),
            row_seq=np.repeat(np.arange(2, dtype=np.int32), self.lengths),
            tables=tables,
            kv_len=np.array(self.lengths, dtype=np.int32),
            sample_rows=np.arange(rows, dtype=np.int32),
        )


def types(matrix: str, embed: str) -> tuple[tuple[str, Any], ...]:
    return (("matrix_type", matrix), ("embed_type", embed), ("tied", matrix != embed))


def heads(head_dim: int, query: int, kv: int) -> tuple[tuple[str, Any], ...]:
    return (("head_dim", head_dim), ("heads", query), ("kv_heads", kv))


CASES = (
    *(Case(kind, model=types(kind, kind)) for kind in ("F32", "F16", "BF16", "Q4_0", "Q8_0")),
    Case("Q4_1", model=types("Q4_1", "Q8_0")),
    Case("head_dim 64, 3 to 1", (33, 64), 64, heads(64, 3, 1)),
    Case("head_dim 80, 4 to 1", (20, 40), 32, heads(80, 8, 2)),
    Case("head_dim 96, 4 to 1", (20, 40), 32, heads(96, 8, 2)),
    Case("head_dim 128, 1 to 1", (31, 97), 96, heads(128, 2, 2)),
    Case("head_dim 256, 2 to 1", (20, 40), 32, heads(256, 2, 1)),
    Case("three parts", (1030, 5), 32, (("layers", 1), ("heads", 4))),
    Case("denormals", smallest=-140),
)


@functools.cache
def model_file(case: Case) -> GGUFFile:
    with tempfile.TemporaryDirectory() as folder:
        return GGUFFile(case.write(Path(folder) / "model.gguf"))  # mapped: outlives its name


@functools.cache
def twin(case: Case) -> tuple[Float32, Pages]:
    """Logits and pages of the NumPy forward pass."""
    file = model_file(case)
    spec = read_spec(file)
    layout = KVLayout.of(spec, case.page_size)
    weights = {
        name: reference.matrix(int(info.type), file.data(name), *(1, *info.shape)[-2:])
        for name, info in file.tensors.items()
    }
    pages = unwritten(layout, case)
    return reference.forward(spec, weights, case.batch(spec), pages, layout), pages


def unwritten(layout: KVLayout, case: Case) -> Pages:
    """Pages full of NaN."""
    count = sum(layout.pages_for(n) for n in case.lengths)
    return np.full((count, layout.page_bytes), 0xFF, dtype=np.uint8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_and_twin_are_equal(case: Case, isa: str) -> None:
    logits, pages = twin(case)
    file = model_file(case)
    spec = read_spec(file)
    layout = KVLayout.of(spec, case.page_size)
    pool = PagePool(layout, len(pages))
    pool.data[:] = unwritten(layout, case)
    rows = sum(case.lengths)
    config = EngineConfig(
        model="tiny",
        isa=isa,
        threads=2,
        page_size=case.page_size,
        max_num_batched_tokens=rows,
        max_num_seqs=rows,
    )
    computed = load_runner(file, spec, layout, pool, config).run(case.batch(spec))
    np.testing.assert_array_equal(computed, logits)
    np.testing.assert_array_equal(pool.data, pages)
