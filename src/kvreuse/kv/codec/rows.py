"""Quantization of rows of keys or values, each row by itself, with the kernels' arithmetic.

Rows are float32[tokens, head_dim]. A channel is *finite* if its magnitude is below 3e38. A channel
that is not finite becomes 0, and the scale of its row (int4: its group) becomes infinite: 0 x inf
is NaN, so that the decoded row is NaN instead of a wrong number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, add, flush, fma, mul

INT8_LEVELS = 127
INT4_LEVELS = 15
GROUP = 64
"""Channels that share a scale and a minimum in an int4 row; the last group may be shorter."""
LARGEST = np.float32(3e38)
"""Magnitudes from this on count as not finite."""
SMALLEST_HALF = np.float32(2.0**-14)
"""The smallest normal number of half precision, and the smallest scale."""


class IntegerRows(NamedTuple):
    """Quantized rows: a channel is about ``q * scale + minimum``, both of its group."""

    q: npt.NDArray[np.int32]
    """int32[tokens, head_dim]: int8 from -127 to 127, int4 from 0 to 15."""
    scale: Float32
    """float32[tokens, groups]; int8 has one group."""
    minimum: Float32 | None
    """float32[tokens, groups]; None for int8."""


def quantize_int8(rows: Float32, clip: float = 1.0) -> IntegerRows:
    """Symmetric, one scale a row: the largest magnitude times ``clip`` becomes 127."""
    x, finite = _finite(rows)
    largest = np.abs(x).max(axis=1, keepdims=True)
    largest[~finite.all(axis=1)] = np.inf
    scale = mul(largest, np.float32(float(np.float32(clip)) / INT8_LEVELS))
    q = np.clip(np.rint(mul(x, _inverse(scale))), -INT8_LEVELS, INT8_LEVELS)
    return IntegerRows(q.astype(np.int32), scale, None)


def quantize_int4(rows: Float32, clip: float = 1.0) -> IntegerRows:
    """Asymmetric, a scale and a minimum for each 64 channels.

    The levels cover the middle share ``clip`` of the range. Scale and minimum have half precision;
    if the minimum is beyond its range, the scale is infinite.
    """
    x, finite = _finite(rows)
    q = np.zeros(x.shape, dtype=np.int32)
    scales, minima = [], []
    for start in range(0, x.shape[1], GROUP):
        group = slice(start, start + GROUP)
        q[:, group], scale, minimum = _int4_group(x[:, group], finite[:, group], clip)
        scales.append(scale)
        minima.append(minimum)
    return IntegerRows(q, np.concatenate(scales, axis=1), np.concatenate(minima, axis=1))


def dequantize(rows: IntegerRows) -> Float32:
    """float32[tokens, head_dim]: the decoded rows; NaN where the scale is infinite."""
    width = -(-rows.q.shape[1] // rows.scale.shape[1]) if rows.minimum is None else GROUP
    groups = np.arange(rows.q.shape[1]) // width
    scaled = mul(rows.q, rows.scale[:, groups])
    return scaled if rows.minimum is None else add(scaled, rows.minimum[:, groups])


def _finite(rows: Float32) -> tuple[Float32, npt.NDArray[np.bool_]]:
    """The rows with 0 in place of channels that are not finite, and the mask of finite channels."""
    finite = np.abs(rows) < LARGEST
    return np.where(finite, flush(rows), np.float32(0)), finite


def _inverse(scale: Float32) -> Float32:
    """``1 / scale``; 0 where the scale is 0 or infinite."""
    usable = (scale > 0) & (scale < np.inf)
    inverse = flush(np.float32(1) / np.where(usable, scale, np.float32(1)))
    return np.where(usable, inverse, np.float32(0))


def _int4_group(
    x: Float32, finite: npt.NDArray[np.bool_], clip: float
) -> tuple[npt.NDArray[np.int32], Float32, Float32]:
    """Integers [tokens, channels], scale and minimum [tokens, 1] of one group."""
    share = float(np.float32(clip))
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    span = add(high, -low)
    scale = np.maximum(mul(span, np.float32(share / INT4_LEVELS)), SMALLEST_HALF)
    scale[~finite.all(axis=1)] = np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        minimum = fma(span, np.float32((1 - share) / 2), low)
    minimum = np.where(span < LARGEST, minimum, np.float32(np.inf))
    minimum = np.where(np.abs(minimum) < SMALLEST_HALF, np.float32(0), minimum)
    scale, minimum = _half(scale), _half(minimum)
    scale = np.where(np.isfinite(minimum), scale, np.float32(np.inf))
    with np.errstate(invalid="ignore"):
        levels = np.rint(mul(add(x, -minimum), _inverse(scale)))
    n = np.where(np.isfinite(scale), np.clip(levels, 0, INT4_LEVELS), 0)
    return n.astype(np.int32), scale, minimum


def _half(x: Float32) -> Float32:
    """Rounded to half precision, to nearest even; infinite from 65,520 on."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).astype(np.float32)
