"""Rotary position embedding (Su et al., 2021)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, Float64, flush, fma, mul
from kvreuse.shape import RopeSpec


def rope_tables(spec: RopeSpec, num_positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines of the angles: float32 ``[num_positions, dims / 2]``, from float64.

    Pair i turns by ``base ** (-2 i / dims)`` a position, or more slowly where ``spec`` is scaled;
    YaRN also stretches both.
    """
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * _frequencies(spec)
    stretch = spec.param("attn_factor") if spec.scaling == "yarn" else 1.0
    cosines, sines = np.cos(angles) * stretch, np.sin(angles) * stretch
    return cosines.astype(np.float32), sines.astype(np.float32)


def _frequencies(spec: RopeSpec) -> Float64:
    """Radians a position ``[dims / 2]``: those trained, divided, or a mixture of both."""
    trained = spec.base ** (-np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims)
    if spec.scaling == "none":
        return np.asarray(trained)
    if spec.scaling == "factors":
        return np.asarray(trained / np.array(spec.factors, dtype=np.float64))
    slow = trained / spec.param("factor")
    if spec.scaling == "linear":
        return np.asarray(slow)
    kept = _kept_by_turns(spec, trained) if spec.scaling == "llama3" else _kept_by_pair(spec)
    return np.asarray(slow * (1 - kept) + trained * kept)


def _kept_by_turns(spec: RopeSpec, trained: Float64) -> Float64:
    """Llama 3.1: what a pair keeps of its speed grows with its turns in the trained context."""
    turns = spec.param("original_context") * trained / (2 * np.pi)
    low, high = spec.param("low_freq_factor"), spec.param("high_freq_factor")
    return np.clip((turns - low) / (high - low), 0, 1)


def _kept_by_pair(spec: RopeSpec) -> Float64:
    """YaRN (Peng et al., 2023): the same, falling with the number of the pair."""
    fast, slow = (
        spec.dims
        * math.log(spec.param("original_context") / (spec.param(beta) * 2 * math.pi))
        / (2 * math.log(spec.base))
        for beta in ("beta_fast", "beta_slow")
    )
    first, last = max(math.floor(fast), 0), min(math.ceil(slow), spec.dims - 1)
    pairs = np.arange(spec.dims // 2, dtype=np.float64)
    return np.asarray(1 - np.clip((pairs - first) / max(last - first, 0.001), 0, 1))


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
