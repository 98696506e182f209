"""KVLayout: from the geometry of a model and a page to bytes, offsets and a fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import BF16, KVCodec
from kvreuse.kv.codec.planes import TILE_TOKENS, Kind, PlaneCodec
from kvreuse.shape import ModelShape

KINDS: tuple[Kind, Kind] = ("key", "value")


class Plane(NamedTuple):
    """One KV head's keys, or values, of one layer."""

    layer: int
    kind: Kind
    head: int


@dataclasses.dataclass(frozen=True, slots=True)
class KVLayout:
    """Bytes of one page: ``[layer][K, V][kv head][page_size tokens in tiles of 32]``.

    The innermost run, one head's keys or values of a page in one layer, is a *plane*; its size and
    its inside belong to the plane's codec. Raises ConfigError where ``page_size`` is no positive
    multiple of 32.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 32
    codec: KVCodec = BF16
    _offsets: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """Where each plane starts, in page order, and where the last one ends."""

    def __post_init__(self) -> None:
        """Check the page size, the only number here that a user chooses, and add up the planes."""
        if self.page_size <= 0 or self.page_size % TILE_TOKENS:
            raise ConfigError(
                f"page_size must be a positive multiple of {TILE_TOKENS} tokens, "
                f"got {self.page_size} (--page-size)"
            )
        self._add_up()

    def _add_up(self) -> None:
        sizes = (
            self.page_size * self.plane_codec(*plane).row_bytes(self.head_dim, plane.kind)
            for plane in self.planes()
        )
        object.__setattr__(self, "_offsets", (0, *itertools.accumulate(sizes)))

    @classmethod
    def of(cls, spec: ModelShape, page_size: int = 32, codec: KVCodec = BF16) -> KVLayout:
        """The layout for the keys and values of ``spec``."""
        return cls(spec.num_layers, spec.num_kv_heads, spec.head_dim, page_size, codec)

    def planes(self) -> list[Plane]:
        """All planes of a page in their order."""
        return [
            Plane(layer, kind, head)
            for layer in range(self.num_layers)
            for kind in KINDS
            for head in range(self.num_kv_heads)
        ]

    def plane_codec(self, layer: int, kind: Kind, head: int) -> PlaneCodec:
        """What encodes the rows of one plane."""
        return self.codec.plane(layer, kind, head)

    def plane_offset(self, layer: int, kind: Kind, head: int) -> int:
        """Where in a page the plane of ``head``'s keys or values of ``layer`` starts, in bytes."""
        return self._offsets[self._index(layer, kind, head)]

    def plane_bytes(self, layer: int, kind: Kind, head: int) -> int:
        """Bytes of one KV head's keys (or values) of a page in one layer."""
        index = self._index(layer, kind, head)
        return self._offsets[index + 1] - self._offsets[index]

    def _index(self, layer: int, kind: Kind, head: int) -> int:
        return (layer * 2 + (kind == "value")) * self.num_kv_heads + head

    def layer_bytes(self, layer: int) -> slice:
        """Where one layer lies in a page: keys, then values, of all KV heads."""
        planes = 2 * self.num_kv_heads
        return slice(self._offsets[layer * planes], self._offsets[(layer + 1) * planes])

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: all layers."""
        return self._offsets[-1]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return self.page_bytes // self.page_size

    def codec_ids(self) -> npt.NDArray[np.int32]:
        """The kernels' number of each plane's codec: int32[planes], in page order."""
        return np.array([self.plane_codec(*plane).id for plane in self.planes()], dtype=np.int32)

    def clips(self) -> npt.NDArray[np.float32]:
        """The clip of each plane: float32[planes], in page order."""
        return np.array([self.codec.clip(*plane) for plane in self.planes()], dtype=np.float32)

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens take; its inverse is ``pages * page_size``."""
        return -(-tokens // self.page_size)

    def fingerprint(self) -> bytes:
        """SHA-256 of everything that says what a page's bytes mean: equal only if all of it is."""
        codec = self.codec.identity(self.codec_ids())
        geometry = (
            f"kvreuse page 1;codec={codec};layers={self.num_layers};"
            f"kv_heads={self.num_kv_heads};head_dim={self.head_dim};page_size={self.page_size}"
        )
        return hashlib.sha256(geometry.encode()).digest()
