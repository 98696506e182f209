"""Rotary position embedding (Su et al., 2021)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.model.spec import RopeSpec
from kvreuse.ops.reference.floats import Float32, flush, fma, mul


def rope_tables(spec: RopeSpec, num_positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines of the angles: float32 ``[num_positions, dims / 2]``, from float64.

    Pair i turns by ``base ** (-2 i / dims)`` a position. Raises ValueError for a scaled regime.
    """
    if spec.scaling != "none":
        raise ValueError(f"no tables for RoPE scaling {spec.scaling!r}")
    frequencies = spec.base ** (-np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims)
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(
    x: Float32,
    positions: npt.NDArray[np.int32],
    tables: tuple[Float32, Float32],
    spec: RopeSpec,
) -> Float32:
    """Turn the pairs of float32 heads ``[T, heads, head_dim]``; channels past ``dims`` pass.

    ``(x0, x1)`` becomes ``(x0 c - x1 s, x1 c + x0 s)``: the first product is fused.
    """
    cosines, sines = (table[positions][:, None, :] for table in tables)
    half = spec.dims // 2
    if spec.pairs == "interleaved":
        first, second = slice(0, spec.dims, 2), slice(1, spec.dims, 2)
    else:
        first, second = slice(0, half), slice(half, spec.dims)
    heads = flush(x)
    out = heads.copy()
    x0, x1 = heads[:, :, first], heads[:, :, second]
    out[:, :, first] = fma(x0, cosines, -mul(x1, sines))
    out[:, :, second] = fma(x1, cosines, mul(x0, sines))
    return out
