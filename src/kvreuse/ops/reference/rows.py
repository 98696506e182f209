"""What happens to one row of activations by itself: norm, quantisation, gates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, add, exp2, flush, fma, mul, tree16

GROUP = 32
LOG2E = np.float32(np.log2(np.e))
GELU_INNER = np.float32(0.044715)
# fp32 products in this order: -2 sqrt(2 / pi) log2(e)
GELU_OUTER = np.float32(-2) * np.float32(0.7978845608028654) * LOG2E


class QuantizedRows(NamedTuple):
    """Rows in groups of 32 integers with a scale: ``x`` is about ``q * scale``."""

    q: npt.NDArray[np.int8]
    """int8 ``[T, K]``, from -127 to 127."""
    scale: Float32
    """float32 ``[T, K / 32]``."""
    scaled_sum: Float32
    """float32 ``[T, K / 32]``: the scale times the sum of the group's integers."""


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """``x * weight / rms(x)`` of float32 rows ``[T, K]``, K a multiple of 16.

    Squares are summed in sixteen lanes, ``x[16 i + j]`` into lane j, then by :func:`tree16`.
    (Zhang and Sennrich, 2019.)
    """
    rows = flush(x)
    lanes = np.zeros((len(rows), 16), dtype=np.float32)
    for start in range(0, rows.shape[1], 16):
        part = rows[:, start : start + 16]
        lanes = fma(part, part, lanes)
    mean = flush(tree16(lanes) / np.float32(rows.shape[1]))
    scale = np.float32(1) / np.sqrt(add(mean, np.float32(eps)))
    return mul(mul(rows, scale[:, None]), flush(weight))


def quantize_rows(x: Float32) -> QuantizedRows:
    """Float32 rows ``[T, K]``, K a multiple of 32, to int8 in groups of 32.

    A group's scale is its largest magnitude times fp32(1 / 127), rounded up to 16 bits of
    mantissa; a group whose scale is below 1e-30 is all zeros.
    """
    rows = flush(x)
    groups = rows.reshape(len(rows), -1, GROUP)
    largest = mul(np.abs(groups).max(axis=2), np.float32(1 / 127))
    bits = np.ascontiguousarray(largest).view(np.uint32)
    rounded = ((bits + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
    dead = rounded < np.float32(1e-30)
    scale = np.where(dead, np.float32(0), rounded)
    inverse = np.where(dead, np.float32(0), np.float32(1) / np.where(dead, np.float32(1), rounded))
    q = np.rint(mul(groups, inverse[:, :, None]))
    scaled_sum = mul(scale, q.sum(axis=2))
    return QuantizedRows(q.astype(np.int8).reshape(rows.shape), scale, scaled_sum)


def silu_mul(gate: Float32, up: Float32) -> Float32:
    """``gate * sigmoid(gate) * up``, float32 of any shape (SwiGLU; Shazeer, 2020)."""
    power = exp2(-mul(gate, LOG2E))
    return mul(flush(gate / add(np.float32(1), power)), up)


def gelu_mul(gate: Float32, up: Float32) -> Float32:
    """``gelu(gate) * up``, float32 of any shape; the tanh form (Hendrycks and Gimpel, 2016)."""
    inner = mul(gate, fma(mul(gate, gate), GELU_INNER, np.float32(1)))
    power = exp2(mul(inner, GELU_OUTER))
    return mul(flush(gate / add(np.float32(1), power)), up)
