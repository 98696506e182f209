"""KVLayout: from the geometry of a model and a page to bytes, offsets and a fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib

from kvreuse.errors import ConfigError
from kvreuse.kv.codec import BF16, TILE_TOKENS, Kind, KVCodec
from kvreuse.model.spec import ModelSpec


@dataclasses.dataclass(frozen=True, slots=True)
class KVLayout:
    """Bytes of one page: ``[layer][K, V][kv head][page_size tokens in tiles of 32]``.

    The innermost run, one head's keys or values of a page in one layer, is a *plane*; its inside
    belongs to the codec. Raises ConfigError where ``page_size`` is no positive multiple of 32.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 32
    codec: KVCodec = BF16

    def __post_init__(self) -> None:
        """Check the page size, the only number here that a user chooses."""
        if self.page_size <= 0 or self.page_size % TILE_TOKENS:
            raise ConfigError(
                f"page_size must be a positive multiple of {TILE_TOKENS} tokens, "
                f"got {self.page_size} (--page-size)"
            )

    @classmethod
    def of(cls, spec: ModelSpec, page_size: int = 32, codec: KVCodec = BF16) -> KVLayout:
        """The layout for the keys and values of ``spec``."""
        return cls(spec.num_layers, spec.num_kv_heads, spec.head_dim, page_size, codec)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in a plane."""
        return self.codec.row_bytes(self.head_dim)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one KV head's keys (or values) of a page in one layer."""
        return self.page_size * self.row_bytes

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in a page: keys, then values, of all KV heads."""
        return 2 * self.num_kv_heads * self.plane_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: all layers."""
        return self.num_layers * self.layer_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return self.page_bytes // self.page_size

    def plane_offset(self, layer: int, kind: Kind, head: int) -> int:
        """Where in a page the plane of ``head``'s keys or values of ``layer`` starts, in bytes."""
        plane = (layer * 2 + (kind == "value")) * self.num_kv_heads + head
        return plane * self.plane_bytes

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens take; its inverse is ``pages * page_size``."""
        return -(-tokens // self.page_size)

    def fingerprint(self) -> bytes:
        """SHA-256 of everything that says what a page's bytes mean: equal only if all of it is."""
        geometry = (
            f"kvreuse page 1;codec={self.codec.name};layers={self.num_layers};"
            f"kv_heads={self.num_kv_heads};head_dim={self.head_dim};page_size={self.page_size}"
        )
        return hashlib.sha256(geometry.encode()).digest()
