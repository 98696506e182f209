"""Drives the real runner one batch at a time, for tests that compare logits with ``==``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.model.decoder import load_decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.ops.native import NativeBackend

from .kv_codecs import codec_for

NUM_PAGES = 96
POSITIONS = 1024


@dataclasses.dataclass
class Tokens:
    """Tokens, the pages they lie in, and how many are computed."""

    ids: list[int]
    table: npt.NDArray[np.int32]
    computed: int = 0


class Machine:
    """The real model on one path; its pages are full of NaN patterns until they are written."""

    def __init__(
        self,
        path: Path,
        codec: str = "bf16",
        *,
        isa: str | None = None,
        threads: int = 2,
        page_size: int = 32,
    ) -> None:
        with open_checkpoint(path) as checkpoint:
            shape = checkpoint.shape
            self.layout = KVLayout.of(shape, page_size, codec_for(shape, codec))
            backend = NativeBackend(isa, threads)
            self.pool = backend.pool(self.layout, NUM_PAGES * 32 // page_size)
            config = EngineConfig(
                model=str(path),
                page_size=page_size,
                max_model_len=POSITIONS,
                max_num_batched_tokens=POSITIONS,
            )
            self.decoder = load_decoder(checkpoint, backend, self.pool, config)
        self.poison()

    def poison(self) -> None:
        """Fill every page with a pattern that is NaN in bf16, and as a scale in any codec."""
        self.pool.data[:] = 0xFF

    def sequence(self, ids: Sequence[int], seed: int | None = None) -> Tokens:
        """A sequence with pages for its tokens and 32 more; in shuffled order with a ``seed``."""
        pages = self.pool.alloc(self.layout.pages_for(len(ids) + 32))
        assert pages is not None
        table = np.array(pages, dtype=np.int32)
        if seed is not None:
            np.random.default_rng(seed).shuffle(table)
        return Tokens(list(ids), table)

    def free(self, *sequences: Tokens) -> None:
        """Give the pages back."""
        for sequence in sequences:
            self.pool.release([int(page) for page in sequence.table])

    def step(self, *parts: tuple[Tokens, int]) -> Float32Array:
        """Compute the next ``n`` tokens of each sequence in one batch; logits of each last row."""
        ids: list[int] = []
        positions: list[int] = []
        row_seq: list[int] = []
        tables = np.zeros((len(parts), max(len(s.table) for s, _ in parts)), dtype=np.int32)
        for i, (s, n) in enumerate(parts):
            ids += s.ids[s.computed : s.computed + n]
            positions += range(s.computed, s.computed + n)
            row_seq += [i] * n
            tables[i, : len(s.table)] = s.table
            s.computed += n
        ends = np.cumsum([n for _, n in parts], dtype=np.int32) - np.int32(1)
        batch = BatchInput(
            ids=np.array(ids, dtype=np.int32),
            positions=np.array(positions, dtype=np.int32),
            row_seq=np.array(row_seq, dtype=np.int32),
            tables=tables,
            kv_len=np.array([s.computed for s, _ in parts], dtype=np.int32),
            sample_rows=ends.astype(np.int32),
        )
        return self.decoder.run(batch).copy()

    def logits(
        self, ids: Sequence[int], chunk: int = POSITIONS, seed: int | None = None
    ) -> Float32Array:
        """Logits after ``ids``, computed from nothing in chunks."""
        self.poison()
        sequence = self.sequence(ids, seed)
        while sequence.computed < len(ids):
            result = self.step((sequence, min(chunk, len(ids) - sequence.computed)))
        self.free(sequence)
        logits: Float32Array = result[0]
        return logits
