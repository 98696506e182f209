"""Whole planes: rows to the bytes that a page holds of them and back, and where these lie."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.codec.floats import Float32
from kvreuse.kv.codec.planes import TILE_TOKENS, Bytes, PlaneCodec
from kvreuse.kv.layout import KVLayout, Plane
from kvreuse.shape import Kind


def encode(codec: PlaneCodec, rows: Float32, kind: Kind, clip: float = 1.0) -> Bytes:
    """The plane, uint8[tokens * row_bytes], that stores ``rows``, float32[tokens, head_dim]."""
    tokens, head_dim = rows.shape
    records = codec.pack(rows, kind, clip).reshape(tokens // TILE_TOKENS, -1)
    tiles = np.empty_like(records)
    tiles[:, codec.places(head_dim, kind).reshape(-1)] = records
    return tiles.reshape(-1)


def decode(codec: PlaneCodec, plane: Bytes, head_dim: int, kind: Kind) -> Float32:
    """The rows float32[tokens, head_dim] that ``plane`` stores."""
    row_bytes = codec.row_bytes(head_dim, kind)
    tiles = plane.reshape(-1, TILE_TOKENS * row_bytes)
    records = tiles[:, codec.places(head_dim, kind).reshape(-1)].reshape(-1, row_bytes)
    return codec.unpack(records, head_dim, kind)


def plane_bytes(layout: KVLayout, plane: Plane) -> slice:
    """The bytes of a page that hold a plane."""
    width = layout.layers[plane.layer].width(plane.kind)
    start = layout.plane_offset(*plane)
    row_bytes = layout.plane_codec(*plane).row_bytes(width, plane.kind)
    return slice(start, start + layout.page_size * row_bytes)


def layer_bytes(layout: KVLayout, layer: int) -> slice:
    """Where a layer lies in a page; it keeps something."""
    planes = [plane_bytes(layout, plane) for plane in layout.planes() if plane.layer == layer]
    return slice(planes[0].start, planes[-1].stop)
