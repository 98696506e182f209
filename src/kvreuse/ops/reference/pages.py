"""Keys and values in pages: ``[layer][K, V][kv head][tiles of 32 tokens]``, bf16.

A tile of keys is ``[2 halves of 16 tokens][head_dim / 2][16 tokens][2 channels]``, a tile of values
``[head_dim / 16][16 token pairs][16 channels][2 tokens of the pair]``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.ops.reference.floats import Float32, from_bf16, to_bf16

Pages = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint16]

TILE = 32


class Geometry(Protocol):
    """What says where a token lies; :class:`PageGeometry` and the pool's layout both do."""

    @property
    def num_layers(self) -> int:
        """Layers in a page."""

    @property
    def num_kv_heads(self) -> int:
        """KV heads a layer."""

    @property
    def head_dim(self) -> int:
        """Channels a head, a multiple of 16."""

    @property
    def page_size(self) -> int:
        """Tokens a page, a multiple of 32."""


@dataclasses.dataclass(frozen=True, slots=True)
class PageGeometry:
    """The least that says where a token lies in a page."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int = TILE

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.num_layers * 2 * self.num_kv_heads * self.page_size * self.head_dim * 2


def write_rows(
    pages: Pages,
    geometry: Geometry,
    layer: int,
    where: tuple[Ints, Ints],
    *,
    k: Float32,
    v: Float32,
) -> None:
    """Encode float32 rows ``[T, kv heads, head_dim]`` of keys and values into ``pages``.

    ``pages`` is uint8 ``[num_pages, page_bytes]``, contiguous; ``where`` are page ids and tokens
    within their page, int32 ``[T]`` each.
    """
    keys, values = _planes(pages, geometry)
    key_at, value_at = _places(layer, *where)
    keys[key_at] = to_bf16(k).reshape(*k.shape[:2], -1, 2)
    values[value_at] = to_bf16(v).reshape(*v.shape[:2], -1, 16)


def read_rows(
    pages: Pages, geometry: Geometry, layer: int, where: tuple[Ints, Ints]
) -> tuple[Float32, Float32]:
    """Keys and values ``[T, kv heads, head_dim]`` that :func:`write_rows` put ``where``."""
    keys, values = _planes(pages, geometry)
    key_at, value_at = _places(layer, *where)
    shape = (len(where[0]), geometry.num_kv_heads, geometry.head_dim)
    return from_bf16(keys[key_at]).reshape(shape), from_bf16(values[value_at]).reshape(shape)


def copy_rows(pages: Pages, geometry: Geometry, source: int, target: int, rows: int) -> None:
    """Copy the first ``rows`` tokens of page ``source``, all layers, to page ``target``."""
    tokens = np.arange(rows, dtype=np.int32)
    for plane, places in zip(_planes(pages, geometry), (_key_place, _value_place), strict=True):
        for layer in range(geometry.num_layers):
            there = plane[places(layer, np.full(rows, source, dtype=np.int32), tokens)]
            plane[places(layer, np.full(rows, target, dtype=np.int32), tokens)] = there


def locate(table: Ints, positions: Ints, page_size: int) -> tuple[Ints, Ints]:
    """Page ids and tokens within the page, int32 ``[T]`` each, of positions in one sequence."""
    return table[positions // page_size], positions % page_size


def _planes(pages: Pages, geometry: Geometry) -> tuple[Bits, Bits]:
    """Views of all keys and of all values: ``[page, layer, head, tile, ...inside of a tile]``."""
    if not pages.flags.c_contiguous:
        raise ValueError("pages must be contiguous")
    dim = geometry.head_dim
    outer = (len(pages), geometry.num_layers, 2, geometry.num_kv_heads, geometry.page_size // TILE)
    bits = pages.view("<u2")
    keys = bits.reshape(*outer, 2, dim // 2, 16, 2)[:, :, 0]
    values = bits.reshape(*outer, dim // 16, 16, 16, 2)[:, :, 1]
    return keys, values


def _places(layer: int, page: Ints, token: Ints) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return _key_place(layer, page, token), _value_place(layer, page, token)


def _key_place(layer: int, page: Ints, token: Ints) -> tuple[Any, ...]:
    """Index of tokens into the keys; gives ``[T, head, head_dim / 2, 2]``."""
    every = slice(None)
    return page, layer, every, token // TILE, token % TILE // 16, every, token % 16


def _value_place(layer: int, page: Ints, token: Ints) -> tuple[Any, ...]:
    """Index of tokens into the values; gives ``[T, head, head_dim / 16, 16]``."""
    every = slice(None)
    return page, layer, every, token // TILE, every, token % TILE // 2, every, token % 2
