"""The NumPy backend: the twins of the kernels behind the interface that a decoder records on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.ops import backend as ops
from kvreuse.ops.backend import SourceMatrix, StepLimits
from kvreuse.ops.reference import matrices
from kvreuse.ops.reference.program import ReferenceProgram
from kvreuse.shape import ModelShape

FLOAT = 4
ROUNDED = frozenset({matrices.Q4_K, matrices.Q5_K, matrices.Q6_K})
"""Types whose groups are rounded when they are repacked."""
WITH_MINIMA = frozenset({matrices.Q4_1, matrices.Q5_1, matrices.Q4_K, matrices.Q5_K})


class ReferenceBackend:
    """A :class:`~kvreuse.ops.backend.Backend` on plain arrays, bit for bit the native one; slow."""

    arithmetic = 1
    """That of the kernels."""

    def pool(self, layout: KVLayout, num_pages: int) -> PagePool:
        """Pages in host memory."""
        return PagePool(layout, num_pages)

    def pack(self, sources: Sequence[SourceMatrix]) -> ops.Matrix:
        """The rows of all sources, as integers with scales or as float32."""
        parts = [matrices.matrix(s.type, s.data, s.rows, s.columns) for s in sources]
        for source, part in zip(sources, parts, strict=True):
            if not all(np.isfinite(array).all() for array in matrices.arrays_of(part)):
                raise ValueError(f"{source.name} holds a number that is not finite")
        return matrices.StackedMatrix(tuple(parts), math.nan if sources[0].type in ROUNDED else 0.0)

    def program(
        self, shape: ModelShape, pool: PagePool, limits: StepLimits, *, grouped: bool = True
    ) -> ops.Program:
        """A program that runs row by row; ``grouped`` changes nothing."""
        return ReferenceProgram(shape, pool, limits)

    def matrix_bytes(self, ggml_type: int, rows: int, columns: int) -> int:
        """Bytes of the arrays of a matrix."""
        if ggml_type not in matrices.BLOCK_DTYPES:
            return FLOAT * rows * columns
        floats = 1 + (ggml_type in WITH_MINIMA)
        return rows * columns + FLOAT * floats * rows * (columns // matrices.GROUP)

    def tensor_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a tensor's array."""
        return FLOAT * rows * columns

    def program_bytes(self, shape: ModelShape, page_size: int, limits: StepLimits) -> int:
        """None: NumPy takes what an operation needs while it runs."""
        return 0
