"""Backends behind their interface: equal results, copies of rows, pages that move between pools."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.config import EngineConfig
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.planes import TILE_TOKENS
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PageError, PagePool
from kvreuse.model.decoder import Decoder, load_decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.ops import reference
from kvreuse.ops.backend import Backend, StepLimits
from kvreuse.ops.batch import BatchInput
from kvreuse.ops.native import NativeBackend
from kvreuse.ops.reference.pages import read_rows

from ..kv.planes_of_pages import plane_bytes
from ..kv_codecs import codec_for
from ..model.gguf.gguf_files import write_tiny
from ..test_twins import CASES, Case, model_file, twin, unwritten

BACKENDS: dict[str, Backend] = {
    "native": NativeBackend(threads=2),
    "reference": reference.ReferenceBackend(),
}
FEW = ("Q4_K", "mixed", "denormals", "qwen2", "qwen3", "gemma3", "window of 33", "factors")
SOME = [case for case in CASES if case.name in FEW]


def over(path: Path, backend: Backend, pages: int, page_size: int, codec: str) -> PageDecoder:
    with open_checkpoint(path) as checkpoint:
        shape = checkpoint.shape
        layout = KVLayout.of(shape, page_size, codec_for(shape, codec))
        pool = backend.pool(layout, pages)
        pool.alloc(pages)
        pool.data[:] = 0xFF
        config = EngineConfig(model="tiny", page_size=page_size, max_num_batched_tokens=256)
        return PageDecoder(load_decoder(checkpoint, backend, pool, config), pool)


class PageDecoder:
    """A decoder of a tiny model, and its pool."""

    def __init__(self, decoder: Decoder, pool: PagePool) -> None:
        self.decoder, self.pool = decoder, pool

    def run(self, start: int, stop: int, *table: int, **more: Any) -> npt.NDArray[np.float32]:
        """Logits of the last of the tokens ``start`` to ``stop``, the same whoever asks."""
        ids = np.random.default_rng(7).integers(0, 320, 256).astype(np.int32)[start:stop]
        last = np.array([len(ids) - 1], dtype=np.int32)
        batch = BatchInput.of_one(ids, start, np.array(table, dtype=np.int32), last)
        return self.decoder.run(dataclasses.replace(batch, **more)).copy()


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_numpy_backend_is_the_twin_of_the_whole_pass(case: Case) -> None:
    """Through the decoder, operation by operation; the twin has a loop over layers of its own."""
    logits, pages = twin(case)
    checkpoint = model_file(case)
    shape, rows = checkpoint.shape, sum(case.lengths)
    backend = BACKENDS["reference"]
    pool = backend.pool(case.layout(shape), len(pages))
    pool.data[:] = unwritten(pool.layout, case)
    config = EngineConfig(model="tiny", max_num_batched_tokens=rows, max_num_seqs=rows)
    decoder = load_decoder(checkpoint, backend, pool, config)
    np.testing.assert_array_equal(decoder.run(case.batch(shape)), logits)
    np.testing.assert_array_equal(pool.data, pages)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "auto"])
@pytest.mark.parametrize("name", BACKENDS)
def test_only_the_rows_that_are_asked_for_are_copied(name: str, codec: str, tmp_path: Path) -> None:
    """35 rows of a page of 96 tokens lie in two of its three tiles; the third stays as it was."""
    path = write_tiny(tmp_path / "x.gguf")
    tiny = over(path, BACKENDS[name], 3, 96, codec)
    tiny.run(0, 90, 2)
    source, untouched = tiny.pool.data[2].copy(), tiny.pool.data[0].copy()
    alone = tiny.run(35, 50, 2)
    tiny.pool.data[2] = source
    copied = tiny.run(35, 50, 1, copies=((2, 1, 35),))
    np.testing.assert_array_equal(copied, alone)
    np.testing.assert_array_equal(tiny.pool.data[2], source)
    np.testing.assert_array_equal(tiny.pool.data[0], untouched)
    layout, tokens = tiny.pool.layout, np.arange(35, dtype=np.int32)
    for layer in range(len(layout.layers)):
        here, there = (
            read_rows(tiny.pool.data, layout, layer, (np.full_like(tokens, page), tokens))
            for page in (1, 2)
        )
        np.testing.assert_array_equal(here, there)
    for plane in layout.planes():
        where = plane_bytes(layout, plane)
        tile = (where.stop - where.start) * TILE_TOKENS // layout.page_size
        assert (tiny.pool.data[1, where.stop - tile : where.stop] == 0xFF).all()


@pytest.mark.parametrize("copy", [(0, 3, 5), (3, 0, 5), (-1, 0, 5), (0, 1, 97), (0, 1, -1)])
def test_a_copy_outside_the_pool_is_refused(copy: tuple[int, int, int], tmp_path: Path) -> None:
    tiny = over(write_tiny(tmp_path / "x.gguf"), BACKENDS["native"], 3, 96, "bf16")
    with pytest.raises(ValueError, match="a copy of rows names a page"):
        tiny.run(0, 5, 0, copies=(copy,))


@pytest.mark.parametrize("codec", ["bf16", "k8v4"])
@pytest.mark.parametrize("receiver", BACKENDS)
def test_pages_move_to_another_pool(receiver: str, codec: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x.gguf")
    sender = over(path, BACKENDS["native"], 3, 32, codec)
    sender.run(0, 64, 2, 0)
    other = over(path, BACKENDS[receiver], 3, 32, codec)
    for page, here in ((2, 1), (0, 2)):
        other.pool.import_page(here, sender.pool.export_page(page))
        assert other.pool.export_page(here) == sender.pool.export_page(page)
    np.testing.assert_array_equal(other.run(64, 90, 1, 2, 0), sender.run(64, 90, 2, 0, 1))


def test_what_is_no_page_is_not_imported() -> None:
    pool = PagePool(KVLayout.uniform(1, 1, 32), 2)
    with pytest.raises(PageError, match="page 0 is free"):
        pool.import_page(0, bytes(pool.layout.page_bytes))
    pool.alloc(1)
    with pytest.raises(PageError, match="3 bytes are no page: one has 4096 bytes"):
        pool.import_page(0, b"abc")


def test_matrices_of_another_backend_are_refused(tmp_path: Path) -> None:
    with open_checkpoint(write_tiny(tmp_path / "x.gguf")) as checkpoint:
        shape = checkpoint.shape
        layout = KVLayout.of(shape)
        limits = StepLimits(1, 1, 1, 32)
        for one, other in (("native", "reference"), ("reference", "native")):
            pool = BACKENDS[one].pool(layout, 1)
            config = EngineConfig(model="tiny")
            weights = load_decoder(checkpoint, BACKENDS[one], pool, config).weights
            with pytest.raises(TypeError, match="of another backend"):
                Decoder(shape, weights, BACKENDS[other], BACKENDS[other].pool(layout, 1), limits)


def test_a_path_that_is_missing_is_an_error_at_the_first_use() -> None:
    backend = NativeBackend("sse9")
    with pytest.raises(ConfigError, match="no instruction-set path is called 'sse9'"):
        _ = backend.isa
