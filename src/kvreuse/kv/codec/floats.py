"""float32 operations with the kernels' rounding: fused, to nearest even, denormals flushed.

Plain NumPy. The reference implementations of kernels and planes use these operations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

SMALLEST_NORMAL = np.float32(2.0**-126)
# A result below this is below 2^-126 when rounded to 24 bits, so it is flushed.
FLUSHED_BELOW = 2.0**-126 - 2.0**-151
# The bits of a float64 that float32 lacks, and their value halfway between two float32.
LOST_BITS = np.int64(0x1FFFFFFF)
HALFWAY = np.int64(0x10000000)

# 2^f = 1 + f * (c1 + f * (c2 + ...)) on [-0.5, 0.5]: minimax in relative error, 1e-7; c5 first.
EXP2_COEFFICIENTS = tuple(
    np.float32(float.fromhex(c))
    for c in (
        "0x1.5bba08p-10",
        "0x1.3cea88p-7",
        "0x1.c6b752p-5",
        "0x1.ebf9bcp-3",
        "0x1.62e42ap-1",
        "0x1.0p+0",
    )
)


def flush(x: npt.ArrayLike) -> Float32:
    """``x`` as float32, with denormals replaced by zeros of the same sign."""
    values = np.asarray(x, dtype=np.float32)
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)


def _narrow(x: Float64) -> Float32:
    """Round to float32 and flush; ``x`` is exact or comes from :func:`fma`."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.asarray(x.astype(np.float32))
    tiny = np.abs(x) < FLUSHED_BELOW
    if tiny.any():
        narrow[tiny] = np.copysign(np.float32(0), narrow[tiny])
    return narrow


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Float32:
    """``a * b + c`` with one rounding, element by element.

    The product of two float32 is exact in float64. The sum is rounded to float64, which changes the
    rounding to float32 only if the sum lies halfway between two float32: then it is rounded to odd
    instead (Boldo and Melquiond, 2008).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = np.asarray(a, dtype=np.float64) * np.asarray(b, dtype=np.float64)
        addend = np.asarray(c, dtype=np.float64)
        total = np.asarray(product + addend)
    halfway = (total.view(np.int64) & LOST_BITS) == HALFWAY
    if halfway.any():
        product, addend = (np.broadcast_to(x, total.shape)[halfway] for x in (product, addend))
        total[halfway] = _round_to_odd(product, addend, total[halfway])
    return _narrow(total)


def _round_to_odd(a: Float64, b: Float64, total: Float64) -> Float64:
    """``a + b`` rounded to odd, given ``total``, the sum rounded to nearest even."""
    # The rounding error of ``total``, by Knuth's two-sum.
    back = total - b
    lost = (a - back) + (b - (total - back))
    bits = total.view(np.int64)
    towards = np.where((lost > 0) == (total > 0), 1, -1)
    nudged: npt.NDArray[np.int64] = np.where((lost != 0) & (bits & 1 == 0), bits + towards, bits)
    return nudged.view(np.float64)


def mul(a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
    """``a * b``, rounded once."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _narrow(np.asarray(np.multiply(a, b, dtype=np.float64)))


def add(a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
    """``a + b``, rounded once (a denormal sum is exact)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return flush(np.asarray(np.add(a, b, dtype=np.float32)))


def tree16(lanes: Float32) -> Float32:
    """Sum sixteen lanes ``[..., 16]`` to ``[...]`` by halves: j with j + 8, then j + 4, ..."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = add(lanes[..., :half], lanes[..., half:])
    return np.asarray(lanes[..., 0])


def exp2(t: npt.ArrayLike) -> Float32:
    """2 to the power ``t``: a polynomial of degree 5 around the nearest integer.

    Exactly 1 at 0, exactly 0 below -125; ``t`` above 126 counts as 126; NaN stays NaN.
    """
    exponent = np.asarray(t, dtype=np.float32)
    clamped = np.clip(exponent, np.float32(-126), np.float32(126))
    whole = np.rint(clamped)
    fraction = clamped - whole
    value: npt.ArrayLike = EXP2_COEFFICIENTS[0]
    for coefficient in EXP2_COEFFICIENTS[1:]:
        value = fma(value, fraction, coefficient)
    power = np.where(np.isnan(whole), np.float32(0), whole).astype(np.int32)
    scaled = np.ldexp(value, power).astype(np.float32)
    return np.where(exponent < np.float32(-125), np.float32(0), scaled)


def to_bf16(x: Float32) -> npt.NDArray[np.uint16]:
    """The upper 16 bits of each float32 after rounding to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> Float32:
    """The float32 value of each bf16; exact."""
    wide = np.asarray(bits, dtype=np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def round_bf16(x: Float32) -> Float32:
    """Each float32 rounded to the nearest bf16, as float32."""
    return from_bf16(to_bf16(x))
