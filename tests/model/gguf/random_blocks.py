"""Random blocks of the types of 256 weights, which the ``gguf`` package reads and does not write.

All bytes are random but the scales of a block, which are such that the weights have the standard
deviation of the given ones. Source of the layouts: the block structures in ``ggml-common.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK_SIZE = 256


def _random(weights: Floats, nbytes: int) -> Bytes:
    """Blocks uint8[rows, blocks of a row, nbytes], the same for the same weights."""
    rows, columns = weights.shape
    seed = int(np.abs(weights[0, :8]).sum() * 1e6)
    shape = (rows, columns // BLOCK_SIZE, nbytes)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _put(blocks: Bytes, at: int, scale: float) -> None:
    """An fp16 number at a byte of every block."""
    blocks[..., at : at + 2] = np.array([scale], np.float16).view(np.uint8)


def _flat(blocks: Bytes) -> Bytes:
    return blocks.reshape(len(blocks), -1)


def q4_k(weights: Floats) -> Bytes:
    """fp16 d and minimum, 12 bytes of 6-bit scales and minima, 128 of quants (0 to 15)."""
    blocks = _random(weights, 144)
    scale = float(weights.std()) / 260
    _put(blocks, 0, scale)
    _put(blocks, 2, scale * 7.5)
    return _flat(blocks)


def q5_k(weights: Floats) -> Bytes:
    """As ``q4_k``, with 32 bytes of fifth bits before the quants (0 to 31)."""
    blocks = _random(weights, 176)
    scale = float(weights.std()) / 530
    _put(blocks, 0, scale)
    _put(blocks, 2, scale * 15.5)
    return _flat(blocks)


def q6_k(weights: Floats) -> Bytes:
    """192 bytes of quants (-32 to 31), 16 int8 scales, fp16 d."""
    blocks = _random(weights, 210)
    _put(blocks, 208, float(weights.std()) / 1370)
    return _flat(blocks)


BLOCKS: Mapping[str, Callable[[Floats], Bytes]] = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}
"""By the name of the type."""
