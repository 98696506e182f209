"""The native program: a forward pass recorded once and run by the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from kvreuse.kv.pool import PagePool
from kvreuse.ops import _native
from kvreuse.ops.backend import Attention, Matrix, Norm, Prologue, StepLimits, Tensor
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.shape import ModelShape

UNITS_PER_THREAD = 8
"""Pieces of attention's work for each thread: threads take them in turn, so none idles for long."""

Made = TypeVar("Made")


class NativeProgram:
    """A :class:`~kvreuse.ops.backend.Program` of the kernels."""

    def __init__(
        self,
        kernels: _native.Kernels,
        shape: ModelShape,
        pool: PagePool,
        limits: StepLimits,
        *,
        grouped: bool = True,
    ) -> None:
        """Take the buffers. ``pool`` is one of the native backend: ``data`` lies in host memory."""
        self._batch = _native.Batch(
            **_batch_limits(pool.layout.page_size, limits),
            page_size=pool.layout.page_size,
            num_pages=pool.num_pages,
            vocabulary=shape.vocab_size,
            group_size=shape.group_size,
            grouped=grouped,
        )
        self._workspace = _native.Workspace(
            **_workspace_limits(shape, limits, kernels.threads),
            max_partials=self._batch.max_partials,
        )
        self._program = _native.Program(kernels, self._workspace, self._batch)
        self._view = _kv_view(shape, pool)
        self._codec = pool.layout.codec
        self._tensors: list[_native.Tensor] = []
        units = UNITS_PER_THREAD * kernels.threads if kernels.threads > 1 else 1
        self._units_wanted = -(-units // shape.num_kv_heads)

    def tensor(self, rows: int, columns: int) -> Tensor:
        """A tensor in memory of its own."""
        tensor = _native.Tensor(rows, columns)
        self._tensors.append(tensor)
        return tensor

    def embed(self, table: Matrix, scale: float, x: Tensor) -> None:
        """Record an embedding."""
        self._program.embed(_own(table, _native.Matrix), scale, _own(x, _native.Tensor))

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
        """Record a linear. ValueError where its widths do not fit."""
        self._program.linear(
            name,
            _native.Projection([_own(matrix, _native.Matrix) for matrix in weights]),
            _own(x, _native.Tensor),
            _input(prologue),
            _own(y, _native.Tensor),
            accumulate,
            sampled,
        )

    def attend(self, attention: Attention, qkv: Tensor, out: Tensor) -> None:
        """Record the attention of a layer. ValueError where its widths do not fit."""
        transform = self._codec.transform(attention.layer)
        rotary = attention.rotary
        layer = _native.Attention(
            self._view,
            _native.Rotary(rotary.cosines, rotary.sines, rotary.spec.pairs == "interleaved"),
            attention.layer,
            math.log2(math.e) * attention.scale,
            attention.window or 0,
            attention.bias,
            attention.q_norm,
            attention.k_norm,
            attention.eps,
            None if transform is None else _flat(transform.constant),
            None if transform is None else _flat(transform.scale),
            transform is not None and transform.hadamard_keys,
            transform is not None and transform.hadamard_values,
        )
        self._program.attend(layer, _own(qkv, _native.Tensor), _own(out, _native.Tensor))

    def add_norm(self, y: Tensor, norm: Norm, x: Tensor) -> None:
        """Record the sum of ``x`` and normalised rows."""
        self._program.add_norm(_own(y, _native.Tensor), _input(norm), _own(x, _native.Tensor))

    def gather(self, x: Tensor, y: Tensor) -> None:
        """Record the selection of the rows that sample."""
        self._program.gather(_own(x, _native.Tensor), _own(y, _native.Tensor))

    def run(self, batch: BatchInput) -> None:
        """Check and load the batch, do its copies, run the kernels; without the GIL."""
        self._batch.load(
            batch.ids,
            batch.positions,
            batch.row_seq,
            batch.tables,
            batch.kv_len,
            batch.sample_rows,
            self._units_wanted,
        )
        for source, destination, rows in batch.copies:
            self._view.copy_rows(source, destination, rows)
        self._program.run()

    @property
    def nbytes(self) -> int:
        """Bytes of tensors, workspace and batch."""
        tensors = sum(tensor.nbytes for tensor in self._tensors)
        return tensors + self._workspace.nbytes + self._batch.nbytes

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far.

        A page counts once for each of attention's work items that reads it, however many rows that
        item has; what a window hides does not count.
        """
        return self._program.page_bytes_read

    def seconds(self) -> dict[str, float]:
        """Seconds spent in the kernels so far, by operation; the rest of a step is Python's."""
        return dict(self._program.seconds())


def program_bytes(shape: ModelShape, page_size: int, limits: StepLimits, threads: int) -> int:
    """Bytes that a program takes before it has tensors: its workspace and its batch."""
    return _native.Batch.bytes(**_batch_limits(page_size, limits)) + _native.Workspace.bytes(
        **_workspace_limits(shape, limits, threads),
        sequences=limits.sequences,
        positions=limits.positions,
    )


def _batch_limits(page_size: int, limits: StepLimits) -> dict[str, int]:
    return {
        "rows": limits.rows,
        "samples": limits.samples,
        "sequences": limits.sequences,
        "table_pages": -(-limits.positions // page_size),
        "positions": limits.positions,
    }


def _workspace_limits(shape: ModelShape, limits: StepLimits, threads: int) -> dict[str, int]:
    return {
        "threads": threads,
        "max_rows": max(limits.rows, limits.samples),
        "max_inputs": max(shape.hidden_size, shape.q_size, shape.intermediate_size),
        "query_width": shape.q_size,
        "group_size": shape.group_size,
        "heads": shape.num_heads,
        "head_dim": shape.head_dim,
    }


def _kv_view(shape: ModelShape, pool: PagePool) -> _native.KVView:
    """Where and how keys and values lie in the pages of ``pool``."""
    layout = pool.layout
    return _native.KVView(
        pool.data,
        layout.page_size,
        shape.num_layers,
        shape.num_kv_heads,
        shape.group_size,
        shape.head_dim,
        layout.codec_ids(),
        layout.clips(),
    )


def _input(prologue: Prologue) -> _native.Input:
    if isinstance(prologue, Norm):
        return _native.Input.rms_norm(prologue.weight, prologue.eps)
    if prologue is None:
        return _native.Input.plain()
    return _native.Input.silu_mul() if prologue == "silu" else _native.Input.gelu_mul()


def _flat(rows: Float32Array | None) -> Float32Array | None:
    """Rows one after the other, as the kernels take them."""
    return None if rows is None else np.ascontiguousarray(rows, dtype=np.float32).reshape(-1)


def _own(made: object, kind: type[Made]) -> Made:
    """A matrix or tensor as what the kernels know it as. TypeError if another backend made it."""
    if not isinstance(made, kind):
        raise TypeError(f"the native backend cannot use a {type(made).__name__} of another backend")
    return made
