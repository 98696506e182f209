"""Weights of a GGUF file as float32, written from the format's description alone.

A block holds 32 weights of one row, in the formats named K 256 (GGUF specification;
``ggml-common.h``): ``sc`` and ``m`` are those of a group of 32 of these, in Q6_K of 16.

======  =====  =======================================================  =======================
format  bytes  block                                                    weight
======  =====  =======================================================  =======================
Q4_0    18     fp16 d, 16 bytes of nibbles                              d * (q - 8)
Q4_1    20     fp16 d, fp16 m, 16 bytes of nibbles                      d * q + m
Q5_0    22     fp16 d, 4 bytes of fifth bits, 16 of nibbles             d * (q - 16)
Q5_1    24     fp16 d, fp16 m, 4 bytes of fifth bits, 16 of nibbles     d * q + m
Q8_0    34     fp16 d, 32 int8                                          d * q
Q4_K    144    fp16 d, fp16 dm, 12 bytes of 6-bit sc and m,             d * sc * q - dm * m
               128 of nibbles
Q5_K    176    the same, 32 bytes of fifth bits before the nibbles      d * sc * q - dm * m
Q6_K    210    128 bytes of nibbles, 64 of upper bits, 16 int8 sc,      d * sc * (q - 32)
               fp16 d
======  =====  =======================================================  =======================

Byte ``i`` of 16 nibbles holds weight ``i`` in its low half and weight ``i + 16`` in its high half;
the fifth bits are in the order of the weights. The K formats differ, see below.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.float32]

BLOCK, SUPER_BLOCK = 32, 256
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}
SUPER_BLOCK_BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


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
    if kind in BLOCK_BYTES:
        blocks = flat.reshape(rows * cols // BLOCK, BLOCK_BYTES[kind])
        return _blocks(kind, blocks).reshape(rows, cols)
    if kind in SUPER_BLOCK_BYTES:
        blocks = flat.reshape(rows * cols // SUPER_BLOCK, SUPER_BLOCK_BYTES[kind])
        return (_six_bits(blocks) if kind == "Q6_K" else _groups(blocks)).reshape(rows, cols)
    raise NotImplementedError(f"the oracle does not know the format {kind}")


def _blocks(kind: str, blocks: Bytes) -> Weights:
    """Weights ``[blocks, 32]`` of quantised blocks."""
    scale = _half(blocks[:, 0:2])
    if kind == "Q8_0":
        return scale * blocks[:, 2:].view(np.int8).astype(np.float32)
    q = _nibbles(blocks[:, -16:])
    if kind in {"Q5_0", "Q5_1"}:
        q |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
    if kind in {"Q4_0", "Q5_0"}:
        return scale * (q.astype(np.float32) - np.float32(8 if kind == "Q4_0" else 16))
    return scale * q.astype(np.float32) + _half(blocks[:, 2:4])


def _groups(blocks: Bytes) -> Weights:
    """Weights ``[blocks, 256]`` of Q4_K, and of Q5_K: eight groups of 32 a block.

    Each 32 bytes of nibbles hold a group in their low halves and the next one in their high halves.
    Bit ``g`` of byte ``i`` of the fifth bits belongs to weight ``i`` of group ``g``.
    """
    nibbles = blocks[:, -128:].reshape(-1, 4, 1, 32)
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 8, 32)
    if blocks.shape[1] == SUPER_BLOCK_BYTES["Q5_K"]:
        fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        q |= fifth << 4
    scale, minimum = _six_bit_pairs(blocks[:, 4:16])
    scales, minima = _half(blocks[:, 0:2]) * scale, _half(blocks[:, 2:4]) * minimum
    weights = q.astype(np.float32)
    weights *= scales[:, :, None]
    weights -= minima[:, :, None]
    return weights


def _six_bit_pairs(packed: Bytes) -> tuple[Weights, Weights]:
    """Scales and minima ``[blocks, 8]`` out of 12 bytes.

    Four bytes hold scales 0 to 3, four minima 0 to 3, in their lower six bits; their upper two are
    those of scales and minima 4 to 7, whose lower four are the nibbles of the last four bytes.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    minima = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _six_bits(blocks: Bytes) -> Weights:
    """Weights ``[blocks, 256]`` of Q6_K: two halves of four runs of 32 weights.

    The 64 bytes of nibbles of a half hold runs 0 and 1 in their low parts, 2 and 3 in their high
    ones; its 32 bytes of upper bits hold two bits of each run, run 0 the lowest.
    """
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    q = (low | upper << 4).reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scale = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    weights: Weights = scale[:, :, None] * q
    return weights


def _half(pairs: Bytes) -> Weights:
    """``[blocks, 2]`` bytes of a little-endian fp16 as ``[blocks, 1]``."""
    return np.ascontiguousarray(pairs).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """``[blocks, 16]`` bytes to ``[blocks, 32]`` values 0 to 15."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)
