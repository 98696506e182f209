"""KVLayout: the bytes of a page, the offsets in it, and a fingerprint of its format."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import BF16, KVCodec
from kvreuse.kv.codec.planes import TILE_TOKENS, PlaneCodec
from kvreuse.shape import KINDS, CacheShape, HeadRows, Kind, LayerShape, attention


class Plane(NamedTuple):
    """The keys, or the values, of one KV head in one layer."""

    layer: int
    kind: Kind
    head: int


@dataclasses.dataclass(frozen=True, slots=True)
class KVLayout:
    """Bytes of one page: ``[layer][K, V][kv head][page_size tokens in tiles of 32]``.

    The innermost run, one head's keys or values of a page in one layer, is a *plane*; its codec
    defines its size and format. Layers may differ in heads and in the widths of keys and values.
    Raises ConfigError if ``page_size`` is not a positive multiple of 32.
    """

    layers: tuple[LayerShape, ...]
    page_size: int = 32
    codec: KVCodec = BF16
    _firsts: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The number of planes before each layer, then of all planes."""
    _offsets: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The byte at which each plane starts, in page order, then the bytes of a page."""

    def __post_init__(self) -> None:
        """Check the page size, the only number here that a user chooses, and sum up the planes."""
        check_page_size(self.page_size)
        self._add_up()

    def _add_up(self) -> None:
        planes = (sum(rows.heads for rows in layer.rows) for layer in self.layers)
        sizes = (self.page_size * self._row_bytes(plane) for plane in self.planes())
        object.__setattr__(self, "_firsts", (0, *itertools.accumulate(planes)))
        object.__setattr__(self, "_offsets", (0, *itertools.accumulate(sizes)))

    def _row_bytes(self, plane: Plane) -> int:
        width = self.layers[plane.layer].width(plane.kind)
        return self.plane_codec(*plane).row_bytes(width, plane.kind)

    @classmethod
    def of(cls, shape: CacheShape, page_size: int = 32, codec: KVCodec = BF16) -> KVLayout:
        """The layout for the keys and values of a model."""
        return cls(shape.layers, page_size, codec)

    @classmethod
    def uniform(
        cls,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int = 32,
        codec: KVCodec = BF16,
    ) -> KVLayout:
        """The layout for layers of equal heads and widths."""
        return cls((attention(num_kv_heads, head_dim),) * num_layers, page_size, codec)

    def planes(self) -> list[Plane]:
        """All planes of a page, in page order."""
        return [
            Plane(number, kind, head)
            for number, layer in enumerate(self.layers)
            for kind, heads, _ in layer.rows
            for head in range(heads)
        ]

    def plane_codec(self, layer: int, kind: Kind, head: int) -> PlaneCodec:
        """The codec of one plane."""
        return self.codec.plane(layer, kind, head)

    def plane_offset(self, layer: int, kind: Kind, head: int) -> int:
        """The offset in bytes of a plane from the start of its page."""
        keys = self.layers[layer].kv_heads if kind == "value" else 0
        return self._offsets[self._firsts[layer] + keys + head]

    def layer_token_bytes(self, layer: int) -> int:
        """Bytes of keys and values that one token takes in one layer."""
        first, end = self._firsts[layer], self._firsts[layer + 1]
        return (self._offsets[end] - self._offsets[first]) // self.page_size

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        return self._offsets[-1]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, all layers together."""
        return self.page_bytes // self.page_size

    def codec_ids(self) -> npt.NDArray[np.int32]:
        """int32[planes], in page order: the id by which the kernels know each plane's codec."""
        return np.array([self.plane_codec(*plane).id for plane in self.planes()], dtype=np.int32)

    def clips(self) -> npt.NDArray[np.float32]:
        """float32[planes], in page order: the clip of each plane (:meth:`KVCodec.clip`)."""
        return np.array([self.codec.clip(*plane) for plane in self.planes()], dtype=np.float32)

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens need; the inverse is ``pages * page_size``."""
        return -(-tokens // self.page_size)

    def fingerprint(self) -> bytes:
        """SHA-256 of everything that the meaning of a page's bytes depends on."""
        codec = self.codec.identity(self.codec_ids())
        text = (
            f"kvreuse page 1;codec={codec};layers={len(self.layers)};"
            f"{_rows_in_words(self.layers)};page_size={self.page_size}"
        )
        return hashlib.sha256(text.encode()).digest()


def check_page_size(page_size: int) -> None:
    """ConfigError if ``page_size`` is not a positive multiple of the tokens in a tile."""
    if page_size <= 0 or page_size % TILE_TOKENS:
        raise ConfigError(
            f"--page-size must be a positive multiple of {TILE_TOKENS} tokens, got {page_size}"
        )


def _rows_in_words(layers: tuple[LayerShape, ...]) -> str:
    """Heads and widths of all layers, for the fingerprint; in short if all layers are equal."""
    rows = [layer.rows for layer in layers]
    heads, width = layers[0].kv_heads, layers[0].key_dim
    if all(found == tuple(HeadRows(kind, heads, width) for kind in KINDS) for found in rows):
        return f"kv_heads={heads};head_dim={width}"
    return "rows=" + ",".join(
        "+".join(f"{kind}:{heads}x{width}" for kind, heads, width in found) for found in rows
    )
