"""Keys and values in pages: ``[layer][K, V][kv head][tiles of 32 tokens]``, as their codecs say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.kv.codec.floats import Float32
from kvreuse.kv.codec.planes import TILE_TOKENS, Places
from kvreuse.kv.layout import KVLayout, Plane
from kvreuse.shape import KINDS, Kind

Pages = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Where = tuple[Ints, Ints]
"""Page ids and tokens within their page, int32 ``[T]`` each."""


def write_rows(
    pages: Pages, layout: KVLayout, layer: int, where: Where, *, k: Float32, v: Float32
) -> None:
    """Encode float32 rows ``[T, kv heads, head_dim]`` of keys and values into ``pages``.

    ``pages`` is uint8 ``[num_pages, page_bytes]``. Rows are stored as they are given: a transform
    comes before.
    """
    for kind, rows in zip(KINDS, (k, v), strict=True):
        for head in range(layout.layers[layer].kv_heads):
            plane = Plane(layer, kind, head)
            clip = layout.codec.clip(*plane)
            records = layout.plane_codec(*plane).pack(rows[:, head], kind, clip)
            pages[where[0][:, None], _places(layout, *plane, where[1])] = records


def read_records(
    pages: Pages, layout: KVLayout, layer: int, kind: Kind, head: int, where: Where
) -> Pages:
    """What one plane stores of the tokens ``where``, uint8 ``[T, row_bytes]``."""
    return pages[where[0][:, None], _places(layout, layer, kind, head, where[1])]


def read_rows(pages: Pages, layout: KVLayout, layer: int, where: Where) -> tuple[Float32, Float32]:
    """Keys and values ``[T, kv heads, head_dim]`` that :func:`write_rows` put ``where``."""

    def rows(kind: Kind, head: int) -> Float32:
        records = read_records(pages, layout, layer, kind, head, where)
        width = layout.layers[layer].width(kind)
        return layout.plane_codec(layer, kind, head).unpack(records, width, kind)

    heads = range(layout.layers[layer].kv_heads)
    keys, values = (np.stack([rows(kind, head) for head in heads], axis=1) for kind in KINDS)
    return keys, values


def copy_rows(pages: Pages, layout: KVLayout, source: int, target: int, rows: int) -> None:
    """Copy the first ``rows`` tokens of page ``source``, all layers, to page ``target``."""
    tokens = np.arange(rows, dtype=np.int32)
    for plane in layout.planes():
        places = _places(layout, *plane, tokens)
        pages[target, places] = pages[source, places]


def locate(table: Ints, positions: Ints, page_size: int) -> Where:
    """Page ids and tokens within the page of positions in one sequence."""
    return table[positions // page_size], positions % page_size


def _places(layout: KVLayout, layer: int, kind: Kind, head: int, token: Ints) -> Places:
    """Where in a page the bytes of tokens of one plane lie, int64 ``[T, row_bytes]``."""
    places = layout.plane_codec(layer, kind, head).places(layout.layers[layer].width(kind), kind)
    tile = token // TILE_TOKENS * places.size + layout.plane_offset(layer, kind, head)
    return tile[:, None] + places[token % TILE_TOKENS]
