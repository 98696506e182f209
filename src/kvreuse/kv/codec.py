"""Codecs: how one head's keys or values of some tokens become the bytes of a plane, and back.

A plane is a run of tiles of 32 tokens, in the order that the kernels read (two bytes an element):

* keys:   ``[2 halves of 16 tokens][head_dim / 2][16 tokens][2 channels]``
* values: ``[head_dim / 16][16 token pairs][16 channels][2 tokens of the pair]``

Both put the two factors of each product of a dot product side by side, so neither AMX tiles nor
vector code ever shuffles. This module is the plain NumPy twin of what the kernels write and read.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Kind = Literal["key", "value"]
TILE_TOKENS = 32
"""Tokens in a tile; a page holds a whole number of tiles."""


class KVCodec(Protocol):
    """Bytes of one head's keys or values. ``rows`` are float32[tokens, head_dim], whole tiles."""

    @property
    def name(self) -> str:
        """Name of the codec, part of a layout's fingerprint."""

    def row_bytes(self, head_dim: int) -> int:
        """Bytes that one token takes in a plane."""

    def encode(self, rows: npt.NDArray[np.float32], kind: Kind) -> npt.NDArray[np.uint8]:
        """The plane, uint8[tokens * row_bytes], that stores ``rows``."""

    def decode(
        self, plane: npt.NDArray[np.uint8], head_dim: int, kind: Kind
    ) -> npt.NDArray[np.float32]:
        """The float32[tokens, head_dim] that ``plane`` stores."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bf16Codec:
    """Keys and values rounded to bfloat16, to the nearest, ties to even. Two bytes an element."""

    name: str = "bf16"

    def row_bytes(self, head_dim: int) -> int:
        """Two bytes for each of ``head_dim`` channels."""
        return 2 * head_dim

    def encode(self, rows: npt.NDArray[np.float32], kind: Kind) -> npt.NDArray[np.uint8]:
        """Round ``rows`` and lay them out in tiles. ValueError unless they fill whole tiles."""
        tokens, head_dim = rows.shape
        if tokens % TILE_TOKENS or head_dim % 16:
            raise ValueError(f"rows of shape {rows.shape} do not fill tiles of 32 tokens")
        halves = to_bf16(rows)
        if kind == "key":
            tiles = halves.reshape(-1, 2, 16, head_dim // 2, 2).transpose(0, 1, 3, 2, 4)
        else:
            tiles = halves.reshape(-1, 16, 2, head_dim // 16, 16).transpose(0, 3, 1, 4, 2)
        return np.ascontiguousarray(tiles).view(np.uint8).reshape(-1)

    def decode(
        self, plane: npt.NDArray[np.uint8], head_dim: int, kind: Kind
    ) -> npt.NDArray[np.float32]:
        """Undo :meth:`encode`; exact."""
        halves = plane.view(np.uint16)
        if kind == "key":
            rows = halves.reshape(-1, 2, head_dim // 2, 16, 2).transpose(0, 1, 3, 2, 4)
        else:
            rows = halves.reshape(-1, head_dim // 16, 16, 16, 2).transpose(0, 2, 4, 1, 3)
        return from_bf16(rows.reshape(-1, head_dim))


BF16 = Bf16Codec()
"""The codec that every pool uses unless told otherwise."""


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits of ``values`` rounded to bfloat16, to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values that bfloat16 ``bits`` stand for; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
