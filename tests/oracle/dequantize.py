"""Weights of a GGUF file as float32, written from the format's description alone.

A block holds 32 weights of one row (GGUF specification; ``ggml-common.h``).

======  =====  ==============================================  =============
format  bytes  block                                           weight
======  =====  ==============================================  =============
Q4_0    18     fp16 d, 16 bytes of nibbles                     d * (q - 8)
Q4_1    20     fp16 d, fp16 m, 16 bytes of nibbles             d * q + m
Q8_0    34     fp16 d, 32 int8                                 d * q
======  =====  ==============================================  =============

Byte ``i`` of the nibbles holds weight ``i`` in its low half and weight ``i + 16`` in its high half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.float32]

BLOCK = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def dequantize(kind: str, raw: Bytes, rows: int, cols: int) -> Weights:
    """Weights ``[rows, cols]`` from the bytes of a tensor whose type is named ``kind``.

    Raises ``NotImplementedError`` for a format that this oracle does not know.
    """
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if kind == "F32":
        return flat.view("<f4").reshape(rows, cols).astype(np.float32)
    if kind == "F16":
        return flat.view("<f2").reshape(rows, cols).astype(np.float32)
    if kind == "BF16":
        wide = flat.view("<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(rows, cols)
    if kind not in BLOCK_BYTES:
        raise NotImplementedError(f"the oracle does not know the format {kind}")
    blocks = flat.reshape(rows * cols // BLOCK, BLOCK_BYTES[kind])
    return _blocks(kind, blocks).reshape(rows, cols)


def _blocks(kind: str, blocks: Bytes) -> Weights:
    """Weights ``[blocks, 32]`` of quantised blocks."""
    scale = _half(blocks[:, 0:2])
    if kind == "Q8_0":
        return scale * blocks[:, 2:].view(np.int8).astype(np.float32)
    if kind == "Q4_0":
        return scale * (_nibbles(blocks[:, 2:]) - np.float32(8))
    return scale * _nibbles(blocks[:, 4:]) + _half(blocks[:, 2:4])


def _half(pairs: Bytes) -> Weights:
    """``[blocks, 2]`` bytes of a little-endian fp16 as ``[blocks, 1]``."""
    return np.ascontiguousarray(pairs).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Weights:
    """``[blocks, 16]`` bytes to ``[blocks, 32]`` values 0 to 15."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
