"""Weights from the bytes of a GGUF tensor: integers with scales, or dense.

A block of 32 weights of one row (GGUF specification, ``ggml-common.h``), which is kept exactly:
Q4_0 ``fp16 d, 16 bytes``, w = d (q - 8); Q4_1 ``fp16 d, fp16 m, 16 bytes``, w = d q + m;
Q5_0 and Q5_1 the same with ``4 bytes`` of fifth bits before the 16, w = d (q - 16) and w = d q + m;
Q8_0 ``fp16 d, 32 int8``, w = d q. Byte i of the 16 holds weights i (low half) and i + 16 (high).

A block of 256 weights is repacked to groups of 32, see :func:`_scaled_groups` and
:func:`_widened_groups`: Q4_K ``fp16 d, fp16 dmin, 12 bytes of scales, 128 bytes``; Q5_K with
``32 bytes`` of fifth bits before the 128; Q6_K ``128 bytes, 64 bytes, 16 int8 scales, fp16 d``.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, flush, from_bf16

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int8]

GROUP = 32
F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30
_D, _M, _LOW, _HIGH, _SCALES = ("d", "<f2"), ("m", "<f2"), "low", "high", ("scales", "u1", 12)
BLOCK_DTYPES = {
    Q4_0: np.dtype([_D, (_LOW, "u1", 16)]),
    Q4_1: np.dtype([_D, _M, (_LOW, "u1", 16)]),
    Q5_0: np.dtype([_D, (_HIGH, "u1", 4), (_LOW, "u1", 16)]),
    Q5_1: np.dtype([_D, _M, (_HIGH, "u1", 4), (_LOW, "u1", 16)]),
    Q8_0: np.dtype([_D, ("q", "i1", 32)]),
    Q4_K: np.dtype([_D, _M, _SCALES, (_LOW, "u1", 128)]),
    Q5_K: np.dtype([_D, _M, _SCALES, (_HIGH, "u1", 32), (_LOW, "u1", 128)]),
    Q6_K: np.dtype([(_LOW, "u1", 128), (_HIGH, "u1", 64), ("scales", "i1", 16), _D]),
}


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """Weights ``scale * q + minimum`` in groups of 32 along the input."""

    q: Integers
    """int8 ``[rows, K / 32, 32]``."""
    scale: Float32
    """float32 ``[rows, K / 32]``, each an fp16."""
    minimum: Float32 | None
    """float32 ``[rows, K / 32]``, each an fp16, or None where the format has none."""

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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StackedMatrix:
    """Matrices whose rows follow each other. ``error`` is NaN where it is not measured."""

    parts: tuple[Matrix, ...]
    error: float

    @property
    def rows(self) -> int:
        """Outputs."""
        return sum(part.shape[0] for part in self.parts)

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for part in self.parts for array in arrays_of(part))


def arrays_of(part: Matrix) -> list[Float32 | Integers]:
    """All arrays of a matrix."""
    if isinstance(part, DenseMatrix):
        return [part.weights]
    minima = [] if part.minimum is None else [part.minimum]
    return [part.q, part.scale, *minima]


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
    blocks = flat.view(BLOCK_DTYPES[type_id])
    if type_id in {Q4_K, Q5_K}:
        made = _scaled_groups(blocks)
    elif type_id == Q6_K:
        made = _widened_groups(blocks)
    else:
        made = _plain_groups(type_id, blocks)
    q, scale, minimum = made
    return IntegerMatrix(
        q=q.reshape(rows, -1, GROUP),
        scale=scale.reshape(rows, -1),
        minimum=None if minimum is None else minimum.reshape(rows, -1),
    )


Groups = tuple[Integers, Float32, Float32 | None]
"""Integers ``[..., 32]``, scales ``[...]`` and minima ``[...]`` of groups in order."""


def _plain_groups(type_id: int, blocks: npt.NDArray[np.void]) -> Groups:
    """Blocks of 32: their integers centred where the format means them to be."""
    scale = blocks["d"].astype(np.float32)
    if type_id == Q8_0:
        return blocks["q"], scale, None
    low = blocks[_LOW]
    q = np.concatenate([low & 15, low >> 4], axis=-1)
    if type_id in {Q5_0, Q5_1}:
        q |= np.unpackbits(blocks[_HIGH], axis=-1, bitorder="little") << 4
    if type_id in {Q4_0, Q5_0}:
        centre = 8 if type_id == Q4_0 else 16
        return q.astype(np.int8) - np.int8(centre), scale, None
    return q.astype(np.int8), scale, blocks["m"].astype(np.float32)


def _scaled_groups(blocks: npt.NDArray[np.void]) -> Groups:
    """Q4_K, Q5_K: a group's scale is ``d`` times six bits, its minimum ``-m`` times six bits.

    Both products are exact in fp32 and are rounded to fp16.
    """
    first, second, third = np.split(blocks["scales"].astype(np.int16), 3, axis=-1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    scale = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
    minimum = -(blocks["m"].astype(np.float32)[:, None] * minima.astype(np.float32))
    low = blocks[_LOW].reshape(-1, 4, 1, 32)
    q = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 8, 32)
    if _HIGH in (blocks.dtype.names or ()):
        q |= (blocks[_HIGH][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    return q.astype(np.int8), _fp16(scale), _fp16(minimum)


def _widened_groups(blocks: npt.NDArray[np.void]) -> Groups:
    """Q6_K: two groups of 16, w = (d scale) q, become one of 8-bit integers.

    The group with the larger scale keeps its integers, times the largest whole number that lets
    nothing leave int8; this number divides the scale, which is rounded to fp16. The integers of the
    other group are rounded to that scale.
    """
    low = blocks[_LOW].reshape(-1, 2, 1, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = blocks[_HIGH].reshape(-1, 2, 1, 32) >> shifts & 3
    q = ((low | high << 4).astype(np.float32) - np.float32(32)).reshape(-1, 8, 2, 16)
    scales = blocks["scales"].astype(np.float32).reshape(-1, 8, 2)
    second = np.abs(scales[..., 0]) < np.abs(scales[..., 1])
    kept = np.where(second, scales[..., 1], scales[..., 0])
    other = np.where(second, scales[..., 0], scales[..., 1])
    ratio = np.divide(other, kept, out=np.zeros_like(kept), where=kept != 0)
    largest = np.abs(q).max(axis=-1)
    extents = (largest[..., 1], largest[..., 0])
    extent = np.maximum(
        np.where(second, *extents), np.where(second, *extents[::-1]) * np.abs(ratio)
    )
    factor = np.divide(np.float32(127), extent, out=np.zeros_like(extent), where=extent > 0)
    factor = np.maximum(np.float32(4), np.floor(factor))
    multiples = np.where(
        second[..., None] == np.array([False, True]), factor[..., None], (factor * ratio)[..., None]
    )
    integers = np.minimum(np.rint(q * multiples[..., None]), 127).astype(np.int8)
    scale = blocks["d"].astype(np.float32)[:, None] * kept / factor
    return integers.reshape(-1, 8, 32), _fp16(scale), None


def _fp16(values: Float32) -> Float32:
    """``values`` rounded to fp16."""
    return values.astype(np.float16).astype(np.float32)
