"""The NumPy program: recorded operations, each run by the twin of its kernel."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from kvreuse.kv.codec.floats import Float32, add
from kvreuse.kv.pool import PagePool
from kvreuse.ops.backend import Attention, Matrix, Norm, Prologue, StepLimits, Tensor
from kvreuse.ops.batch import BatchInput
from kvreuse.ops.reference.attention import attend, scale_queries
from kvreuse.ops.reference.linear import embed, linear
from kvreuse.ops.reference.matrices import StackedMatrix
from kvreuse.ops.reference.pages import copy_rows, write_rows
from kvreuse.ops.reference.rotary import rope
from kvreuse.ops.reference.rows import gelu_mul, rms_norm, silu_mul
from kvreuse.ops.reference.transform import (
    restore_values,
    transform_keys,
    transform_queries,
    transform_values,
)
from kvreuse.shape import ModelShape

Made = TypeVar("Made")
Operation = Callable[[BatchInput], None]


class Array:
    """A tensor: float32 ``[rows, columns]`` in ``values``."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.values: Float32 = np.zeros((rows, columns), dtype=np.float32)

    def read(self, rows: int) -> Float32:
        """The first rows, not copied."""
        return self.values[:rows]

    def write(self, rows: Float32) -> None:
        """Set the first rows."""
        self.values[: len(rows)] = rows


class ReferenceProgram:
    """A :class:`~kvreuse.ops.backend.Program` of the twins."""

    def __init__(self, shape: ModelShape, pool: PagePool, limits: StepLimits) -> None:
        self._shape, self._pool, self._limits = shape, pool, limits
        self._operations: list[tuple[str, Operation]] = []
        self._tensors: list[Array] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.page_bytes_read = 0

    def tensor(self, rows: int, columns: int) -> Tensor:
        """An array of zeros."""
        self._tensors.append(Array(rows, columns))
        return self._tensors[-1]

    def embed(self, table: Matrix, scale: float, x: Tensor) -> None:
        """Record an embedding."""
        (weights,) = _own(table, StackedMatrix).parts
        self._record("embed", lambda batch: x.write(embed(weights, batch.ids, scale)))

    def linear(
        self,
        name: str,
        weights: Sequence[Matrix],
        x: Tensor,
        y: Tensor,
        *,
        prologue: Prologue = None,
        accumulate: bool = False,
        sampled: bool = False,
    ) -> None:
        """Record a linear."""
        parts = [part for matrix in weights for part in _own(matrix, StackedMatrix).parts]

        def run(batch: BatchInput) -> None:
            rows = len(batch.sample_rows if sampled else batch.ids)
            given = _prepared(prologue, x.read(rows))
            out = np.concatenate([linear(given, part) for part in parts], axis=1)
            y.write(add(y.read(rows), out) if accumulate else out)

        self._record(name, run)

    def attend(self, attention: Attention, qkv: Tensor, out: Tensor) -> None:
        """Record the attention of a layer."""
        self._record(
            "attention",
            lambda batch: out.write(self._attend(attention, qkv.read(len(batch.ids)), batch)),
        )

    def add_norm(self, y: Tensor, norm: Norm, x: Tensor) -> None:
        """Record the sum of ``x`` and normalised rows."""

        def run(batch: BatchInput) -> None:
            rows = len(batch.ids)
            x.write(add(x.read(rows), _prepared(norm, y.read(rows))))

        self._record("norm", run)

    def gather(self, x: Tensor, y: Tensor) -> None:
        """Record the selection of the rows that sample."""
        self._record("gather", lambda batch: y.write(x.read(len(batch.ids))[batch.sample_rows]))

    def run(self, batch: BatchInput) -> None:
        """Check the batch's sizes, do its copies, then every operation."""
        for what, count, limit in (
            ("rows", len(batch.ids), self._limits.rows),
            ("rows that sample", len(batch.sample_rows), self._limits.samples),
            ("sequences", len(batch.tables), self._limits.sequences),
        ):
            if count > limit:
                raise ValueError(f"the number of {what} is {count}, the limit is {limit}")
        for source, destination, rows in batch.copies:
            copy_rows(self._pool.data, self._pool.layout, source, destination, rows)
        for name, operation in self._operations:
            begin = time.perf_counter()
            operation(batch)
            self._seconds[name] += time.perf_counter() - begin

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.values.nbytes for tensor in self._tensors)

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, by operation."""
        return dict(self._seconds)

    def _record(self, name: str, operation: Operation) -> None:
        self._operations.append((name, operation))

    def _attend(self, attention: Attention, qkv: Float32, batch: BatchInput) -> Float32:
        shape, pool, layout = self._shape, self._pool, self._pool.layout
        layer, dim = attention.layer, shape.head_dim
        if attention.bias is not None:
            qkv = add(qkv, attention.bias)
        cuts = [shape.q_size, shape.q_size + shape.kv_size]
        q, k, v = (part.reshape(len(part), -1, dim) for part in np.split(qkv, cuts, axis=1))
        q = _rotated(q, attention.q_norm, attention, batch)
        k = _rotated(k, attention.k_norm, attention, batch)
        transform = layout.codec.transform(layer)
        pages = batch.tables[batch.row_seq, batch.positions // layout.page_size]
        write_rows(
            pool.data,
            layout,
            layer,
            (pages, batch.positions % np.int32(layout.page_size)),
            k=transform_keys(k, transform),
            v=transform_values(v, transform),
        )
        seen = attend(
            transform_queries(scale_queries(q, dim, attention.scale), transform),
            pool.data,
            layout,
            layer=layer,
            tables=batch.tables,
            kv_len=batch.kv_len,
            positions=batch.positions,
            row_seq=batch.row_seq,
            window=attention.window,
        )
        self.page_bytes_read += int(batch.kv_len.sum()) * layout.layer_token_bytes(layer)
        return restore_values(seen.reshape(q.shape), transform).reshape(seen.shape)


def _prepared(prologue: Prologue, x: Float32) -> Float32:
    """The input of a linear after its prologue."""
    if isinstance(prologue, Norm):
        return rms_norm(x, prologue.weight, prologue.eps)
    if prologue is None:
        return x
    gate, up = np.split(x, 2, axis=1)
    return silu_mul(gate, up) if prologue == "silu" else gelu_mul(gate, up)


def _rotated(
    heads: Float32, norm: Float32 | None, attention: Attention, batch: BatchInput
) -> Float32:
    """Heads ``[T, heads, head_dim]``: each normalised where there is a norm, then rotated."""
    if norm is not None:
        rows = heads.reshape(-1, heads.shape[2])
        heads = rms_norm(rows, norm, attention.eps).reshape(heads.shape)
    rotary = attention.rotary
    return rope(heads, batch.positions, (rotary.cosines, rotary.sines), rotary.spec)


def _own(made: object, kind: type[Made]) -> Made:
    """A matrix as this backend packs it. TypeError if another backend made it."""
    if not isinstance(made, kind):
        raise TypeError(f"the NumPy backend cannot use a {type(made).__name__} of another backend")
    return made
