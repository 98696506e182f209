"""What keys, queries and values go through between the rotary embedding and a page, and back."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.codec.codec import LayerTransform
from kvreuse.kv.codec.floats import Float32, add, flush, fma, mul

LANES = 16
SIGNS = np.array(
    [[(-1) ** (i & j).bit_count() for i in range(LANES)] for j in range(LANES)], dtype=np.float32
)
"""``SIGNS[j, i]`` is (-1) ** popcount(i & j): a Hadamard matrix of 16 rows (Sylvester, 1867)."""


def hadamard(x: Float32) -> Float32:
    """Rotate heads ``[..., head_dim]`` by a block Hadamard matrix, orthonormal and its own inverse.

    Blocks are the largest power of two that divides ``head_dim``, at least 16. Sums run within
    sixteen channels first, one after the other, then in butterflies over 16, 32, ... channels.
    """
    dim = x.shape[-1]
    block = dim & -dim
    lanes = x.reshape(*x.shape[:-1], dim // LANES, LANES)
    y = np.zeros_like(lanes)
    for j in range(LANES):
        y = fma(lanes[..., j, None], SIGNS[j], y)
    y = y.reshape(x.shape)
    span = LANES
    while span < block:
        pairs = y.reshape(*x.shape[:-1], dim // (2 * span), 2, span)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([add(a, b), add(a, -b)], axis=-2).reshape(x.shape)
        span *= 2
    return mul(y, np.float32(1 / np.sqrt(np.float64(block))))


def transform_keys(k: Float32, transform: LayerTransform | None) -> Float32:
    """Rotated keys ``[T, kv heads, head_dim]`` as their pages store them."""
    if transform is None:
        return k
    if transform.constant is not None:
        k = add(k, -transform.constant)
    if transform.scale is not None:
        k = mul(k, flush(np.float32(1) / transform.scale))
    return hadamard(k) if transform.hadamard_keys else k


def transform_queries(q: Float32, transform: LayerTransform | None) -> Float32:
    """Rotated and scaled queries ``[T, heads, head_dim]`` as the keys of their KV heads want them.

    Query heads that share a KV head lie side by side.
    """
    if transform is None:
        return q
    if transform.scale is not None:
        group = q.shape[1] // len(transform.scale)
        q = mul(q, np.repeat(transform.scale, group, axis=0))
    return hadamard(q) if transform.hadamard_keys else q


def transform_values(v: Float32, transform: LayerTransform | None) -> Float32:
    """Values ``[T, kv heads, head_dim]`` as their pages store them."""
    return hadamard(v) if transform is not None and transform.hadamard_values else v


def restore_values(out: Float32, transform: LayerTransform | None) -> Float32:
    """What heads of attention ``[T, heads, head_dim]`` see, in the channels that values came in."""
    return hadamard(out) if transform is not None and transform.hadamard_values else out
