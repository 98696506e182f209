"""One layer and a step over it of one new token a sequence: what benches measure attention with."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.pool import PagePool
from kvreuse.ops.backend import Attention, Backend, Rotary, StepLimits
from kvreuse.ops.batch import BatchInput, Float32Array, Int32Array
from kvreuse.shape import ModelShape, RopeSpec


class LayerStep:
    """The last token of every sequence, on random queries, keys and values.

    ``tables`` int32[sequences, pages a sequence] name pages of ``pool``, whose layout has one layer
    of the heads of ``shape``; all sequences are ``positions`` tokens long.
    """

    def __init__(
        self,
        backend: Backend,
        shape: ModelShape,
        pool: PagePool,
        tables: Int32Array,
        positions: int,
        *,
        grouped: bool = True,
    ) -> None:
        count, dims = len(tables), shape.head_dim
        self._batch = BatchInput(
            ids=np.zeros(count, dtype=np.int32),
            positions=np.full(count, positions - 1, dtype=np.int32),
            row_seq=np.arange(count, dtype=np.int32),
            tables=tables,
            kv_len=np.full(count, positions, dtype=np.int32),
            sample_rows=np.zeros(0, dtype=np.int32),
        )
        limits = StepLimits(rows=count, samples=1, sequences=count, positions=positions)
        self._program = backend.program(shape, pool, limits, grouped=grouped)
        width = shape.q_size + 2 * shape.kv_size
        qkv = self._program.tensor(count, width)
        qkv.write(np.random.default_rng(0).standard_normal((count, width), dtype=np.float32))
        self._out = self._program.tensor(count, shape.q_size)
        ones = np.ones((positions, dims // 2), dtype=np.float32)
        rotary = Rotary(RopeSpec("half", 1e4, dims), ones, ones * 0)
        self._program.attend(Attention(0, 0.1, rotary), qkv, self._out)

    def run(self) -> tuple[float, int]:
        """The step: its seconds in attention, and the bytes of pages that it read."""
        before = self._state()
        self._program.run(self._batch)
        after = self._state()
        return after[0] - before[0], after[1] - before[1]

    def _state(self) -> tuple[float, int]:
        return self._program.seconds()["attention"], self._program.page_bytes_read

    def result(self) -> Float32Array:
        """float32[sequences, heads * head_dim]: what the last step gave."""
        return self._out.read(self._out.rows).copy()
