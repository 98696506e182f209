"""Products with a weight matrix, and the rows of an embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, add, flush, fma, mul
from kvreuse.ops.reference.matrices import GROUP, DenseMatrix, IntegerMatrix, Matrix
from kvreuse.ops.reference.rows import quantize_rows

ROWS_AT_ONCE = 32


def linear(x: Float32, weights: Matrix) -> Float32:
    """``x @ weights.T``: float32 ``[T, K]`` to ``[T, rows]``; each row by itself, in a fixed order.

    Integer weights meet activations quantised by :func:`quantize_rows`: a group's products are
    summed exactly, then added up with fused multiply-adds in ascending order. Dense weights meet
    the activations as they are, one fused multiply-add an input.
    """
    out = np.zeros((len(x), weights.shape[0]), dtype=np.float32)
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        if isinstance(weights, DenseMatrix):
            out[rows] = _dense(x[rows], weights)
        else:
            out[rows] = _integer(x[rows], weights)
    return out


def _dense(x: Float32, weights: DenseMatrix) -> Float32:
    rows = flush(x)
    acc = np.zeros((len(x), weights.shape[0]), dtype=np.float32)
    for k in range(weights.shape[1]):
        acc = fma(rows[:, k, None], weights.weights[:, k], acc)
    return acc


def _integer(x: Float32, weights: IntegerMatrix) -> Float32:
    rows = quantize_rows(x)
    acc = np.zeros((len(x), weights.shape[0]), dtype=np.float32)
    for group in range(weights.q.shape[1]):
        q = rows.q[:, group * GROUP : (group + 1) * GROUP].astype(np.float32)
        # exact in any order: 32 * 127 * 128 is far below 2^24
        total = q @ weights.q[:, group].T.astype(np.float32)
        scaled = mul(total, rows.scale[:, group, None])
        acc = fma(scaled, weights.scale[:, group], acc)
        if weights.minimum is not None:
            acc = fma(rows.scaled_sum[:, group, None], weights.minimum[:, group], acc)
    return acc


def embed(table: Matrix, ids: npt.NDArray[np.int32], scale: float = 1.0) -> Float32:
    """Rows ``ids`` of the embedding ``table``, dequantised, times ``scale``: float32 ``[T, K]``."""
    if isinstance(table, DenseMatrix):
        return mul(table.weights[ids], np.float32(scale))
    rows = mul(table.q[ids].astype(np.float32), table.scale[ids][:, :, None])
    if table.minimum is not None:
        # the product is exact: 11 bits of scale times 4 of the integer
        rows = add(rows, table.minimum[ids][:, :, None])
    return mul(rows.reshape(len(ids), -1), np.float32(scale))
