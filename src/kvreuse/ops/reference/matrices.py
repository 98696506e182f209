"""Weights from the bytes of a GGUF tensor: integers with scales, or dense. Exact.

A quantised block holds 32 weights of one row (GGUF specification, ``ggml-common.h``):
Q4_0 ``fp16 d, 16 bytes``, w = d (q - 8); Q4_1 ``fp16 d, fp16 m, 16 bytes``, w = d q + m;
Q8_0 ``fp16 d, 32 int8``, w = d q. Byte i of the 16 holds weights i (low half) and i + 16 (high).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kvreuse.ops.reference.floats import Float32, flush, from_bf16

Bytes = npt.NDArray[np.uint8]

GROUP = 32
F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
BLOCK_DTYPES = {
    Q4_0: np.dtype([("d", "<f2"), ("q", "u1", 16)]),
    Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    Q8_0: np.dtype([("d", "<f2"), ("q", "i1", 32)]),
}


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """Weights ``scale * q + minimum`` in groups of 32 along the input."""

    q: npt.NDArray[np.int8]
    """int8 ``[rows, K / 32, 32]``."""
    scale: Float32
    """float32 ``[rows, K / 32]``."""
    minimum: Float32 | None
    """float32 ``[rows, K / 32]``, or None where the format has none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.q.shape[0], self.q.shape[1] * GROUP


@dataclasses.dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Weights as they are: float32 ``[rows, K]``."""

    weights: Float32

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.weights.shape[0], self.weights.shape[1]


Matrix = IntegerMatrix | DenseMatrix


def matrix(type_id: int, raw: Bytes, rows: int, cols: int) -> Matrix:
    """The matrix ``[rows, cols]`` in ``raw``, the bytes of a tensor of GGML type ``type_id``.

    A vector is a matrix of one row. Raises ValueError for another type, or another number of bytes.
    """
    flat = np.ascontiguousarray(raw).reshape(-1)
    if type_id == F32:
        return DenseMatrix(flush(flat.view("<f4").reshape(rows, cols)))
    if type_id == F16:
        return DenseMatrix(flat.view("<f2").reshape(rows, cols).astype(np.float32))
    if type_id == BF16:
        return DenseMatrix(flush(from_bf16(flat.view("<u2").reshape(rows, cols))))
    if type_id not in BLOCK_DTYPES:
        raise ValueError(f"no kernel serves GGML type {type_id}")
    blocks = flat.view(BLOCK_DTYPES[type_id]).reshape(rows, cols // GROUP)
    return IntegerMatrix(
        q=_integers(type_id, blocks["q"]),
        scale=blocks["d"].astype(np.float32),
        minimum=blocks["m"].astype(np.float32) if type_id == Q4_1 else None,
    )


def _integers(type_id: int, stored: npt.NDArray[np.uint8 | np.int8]) -> npt.NDArray[np.int8]:
    """The integers ``[rows, groups, 32]`` of blocks, centred where the format means them to be."""
    if type_id == Q8_0:
        return stored.astype(np.int8)
    nibbles = np.concatenate([stored & 15, stored >> 4], axis=2).astype(np.int8)
    return nibbles - np.int8(8) if type_id == Q4_0 else nibbles
