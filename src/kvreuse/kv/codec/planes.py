"""Plane codecs: encode one head's keys or values as the bytes of a plane, and decode them.

A plane is a run of tiles of 32 tokens, and every byte of a tile belongs to one token. So a codec
defines two things: the *record* of a token, ``row_bytes`` bytes that depend on its row alone, and
the *places* of these bytes in a tile, in the order in which the kernels read. This is the NumPy
reference of what the kernels write, equal to the bit; tests and calibration use it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32, from_bf16, to_bf16
from kvreuse.kv.codec.rows import GROUP, IntegerRows, dequantize, quantize_int4, quantize_int8
from kvreuse.shape import Kind

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

TILE_TOKENS = 32
"""Tokens in a tile; a page holds a whole number of tiles."""


class PlaneCodec(Protocol):
    """Bytes of one head's keys or values. Rows are float32[tokens, head_dim]."""

    @property
    def id(self) -> int:
        """The number by which the kernels know it."""

    @property
    def name(self) -> str:
        """The name, as in ``calibration.WIDTHS``."""

    def row_bytes(self, head_dim: int, kind: Kind) -> int:
        """Bytes of one token in a plane."""

    def pack(self, rows: Float32, kind: Kind, clip: float = 1.0) -> Bytes:
        """The records uint8[tokens, row_bytes] of ``rows``.

        An integer codec spreads its levels over the share ``clip``, in (0, 1], of a row's range.
        """

    def unpack(self, records: Bytes, head_dim: int, kind: Kind) -> Float32:
        """The rows that ``records`` encode; NaN where a row was not finite."""

    def places(self, head_dim: int, kind: Kind) -> Places:
        """int64[32, row_bytes]: the offset in a tile of each byte of each token's record."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bf16Planes:
    """Rounded to bfloat16, to the nearest, ties to even. Two bytes a channel.

    * keys:   ``[2 halves of 16 tokens][head_dim / 2][16 tokens][2 channels]``
    * values: ``[head_dim / 16][16 pairs of tokens][16 channels][2 tokens of the pair]``

    Both put two factors of a dot product side by side, so neither AMX tiles nor vector code needs
    shuffles.
    """

    id: int = 0
    name: str = "bf16"

    def row_bytes(self, head_dim: int, kind: Kind) -> int:
        """Two bytes for each of ``head_dim`` channels."""
        return 2 * head_dim

    def pack(self, rows: Float32, kind: Kind, clip: float = 1.0) -> Bytes:
        """The bits of the rounded channels, in order; ``clip`` is ignored."""
        return _bytes(to_bf16(rows))

    def unpack(self, records: Bytes, head_dim: int, kind: Kind) -> Float32:
        """The rounded rows; exact."""
        return from_bf16(_words(records, np.uint16))

    def places(self, head_dim: int, kind: Kind) -> Places:
        """See the class."""
        if kind == "key":
            return _tokens_first((2, head_dim // 2, 16, 4), (0, 2, 1, 3))
        return _tokens_first((head_dim // 16, 16, 16, 2, 2), (1, 3, 0, 2, 4))


@dataclasses.dataclass(frozen=True, slots=True)
class Int8Planes:
    """Symmetric int8 with one fp32 scale a row: ``byte = q + 128``, then ``scale[32 tokens]``.

    * keys:   ``[2 halves of 16 tokens][head_dim / 4][16 tokens][4 channels]``
    * values: ``[head_dim / 16][8 quads of tokens][16 channels][4 tokens of the quad]``
    """

    id: int = 1
    name: str = "int8"

    def row_bytes(self, head_dim: int, kind: Kind) -> int:
        """One byte a channel, and four for the scale."""
        return head_dim + 4

    def pack(self, rows: Float32, kind: Kind, clip: float = 1.0) -> Bytes:
        """Integers, then the scale."""
        q, scale, _ = quantize_int8(rows, clip)
        return np.concatenate([(q + 128).astype(np.uint8), _bytes(scale)], axis=1)

    def integers(self, records: Bytes, head_dim: int, kind: Kind) -> IntegerRows:
        """The integers, -128 to 127, and their scales."""
        q = records[:, :head_dim].astype(np.int32) - np.int32(128)
        return IntegerRows(q, _words(records[:, head_dim:], np.float32), None)

    def unpack(self, records: Bytes, head_dim: int, kind: Kind) -> Float32:
        """Integers times scale."""
        return dequantize(self.integers(records, head_dim, kind))

    def places(self, head_dim: int, kind: Kind) -> Places:
        """See the class."""
        if kind == "key":
            codes = _tokens_first((2, head_dim // 4, 16, 4), (0, 2, 1, 3))
        else:
            codes = _tokens_first((head_dim // 16, 8, 16, 4), (1, 3, 0, 2))
        return np.concatenate([codes, codes.size + _tokens_first((32, 4), (0, 1))], axis=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Int4Planes:
    """Four bits a channel, and for each 64 channels a scale and a minimum in half precision.

    Two channels of a token share a byte. After these bytes: ``scale[groups][32]``, then
    ``minimum[groups][32]``.

    * keys: ``[2 halves of 16 tokens][head_dim / 8][16 tokens][4 bytes]``; byte b of unit u has
      channel 8u + b in its low bits, 8u + 4 + b in its high bits
    * values: ``[head_dim / 32, rounded up][8 quads of tokens][16 bytes][4 tokens of the quad]``;
      byte c of unit u has channel 32u + c in its low bits, 32u + 16 + c in its high bits (0 where
      there is no such channel)
    """

    id: int = 2
    name: str = "int4"

    def row_bytes(self, head_dim: int, kind: Kind) -> int:
        """Half a byte a channel (values: of whole units), and four bytes a group."""
        return self._code_bytes(head_dim, kind) + 4 * self._groups(head_dim)

    def pack(self, rows: Float32, kind: Kind, clip: float = 1.0) -> Bytes:
        """Pairs of integers, then scales, then minima."""
        q, scale, minimum = quantize_int4(rows, clip)
        assert minimum is not None
        half = 4 if kind == "key" else 16
        short = self._code_bytes(rows.shape[1], kind) * 2 - rows.shape[1]
        units = np.pad(q, ((0, 0), (0, short))).reshape(len(rows), -1, 2, half)
        codes = (units[:, :, 0] | units[:, :, 1] << 4).astype(np.uint8)
        parts = [codes.reshape(len(rows), -1)]
        with np.errstate(over="ignore"):
            parts += [_bytes(x.astype(np.float16)) for x in (scale, minimum)]
        return np.concatenate(parts, axis=1)

    def integers(self, records: Bytes, head_dim: int, kind: Kind) -> IntegerRows:
        """The integers, 0 to 15, their scales and minima."""
        size, groups = self._code_bytes(head_dim, kind), self._groups(head_dim)
        units = records[:, :size].reshape(len(records), -1, 1, 4 if kind == "key" else 16)
        codes = np.concatenate([units & 15, units >> 4], axis=2).reshape(len(records), -1)
        numbers = _words(records[:, size:], np.float16).astype(np.float32)
        q = codes[:, :head_dim].astype(np.int32)
        return IntegerRows(q, numbers[:, :groups], numbers[:, groups:])

    def unpack(self, records: Bytes, head_dim: int, kind: Kind) -> Float32:
        """Integers times scale, plus minimum."""
        return dequantize(self.integers(records, head_dim, kind))

    def places(self, head_dim: int, kind: Kind) -> Places:
        """See the class."""
        if kind == "key":
            codes = _tokens_first((2, head_dim // 8, 16, 4), (0, 2, 1, 3))
        else:
            codes = _tokens_first((-(-head_dim // 32), 8, 16, 4), (1, 3, 0, 2))
        numbers = _tokens_first((2 * self._groups(head_dim), 32, 2), (1, 0, 2))
        return np.concatenate([codes, codes.size + numbers], axis=1)

    @staticmethod
    def _code_bytes(head_dim: int, kind: Kind) -> int:
        return head_dim // 2 if kind == "key" else 16 * -(-head_dim // 32)

    @staticmethod
    def _groups(head_dim: int) -> int:
        return -(-head_dim // GROUP)


BF16, INT8, INT4 = Bf16Planes(), Int8Planes(), Int4Planes()
PLANE_CODECS: tuple[PlaneCodec, ...] = (BF16, INT8, INT4)
"""All plane codecs; the index is the id."""


def _bytes(numbers: npt.NDArray[np.generic]) -> Bytes:
    """The bytes of rows of numbers, uint8[rows, ...]."""
    return np.ascontiguousarray(numbers).view(np.uint8)


def _words(records: Bytes, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The inverse of :func:`_bytes`."""
    return np.ascontiguousarray(records).view(dtype)


def _tokens_first(shape: tuple[int, ...], axes: tuple[int, ...]) -> Places:
    """int64[32, ...]: indices into an array of ``shape``; ``axes`` puts the token axes first."""
    indices = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    return indices.transpose(axes).reshape(TILE_TOKENS, -1)
