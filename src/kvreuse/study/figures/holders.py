"""Two ways to hold keys and values that grow: arrays joined anew for each token, and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool

Rows = npt.NDArray[np.uint16]
"""uint16[layers, 2, kv heads, 1, head_dim]: the keys and values of one token, two bytes each."""


class Holder(Protocol):
    """Holds sequences. ``mapped_bytes`` is what it took from the system beside Python's memory."""

    mapped_bytes: int

    def open(self) -> Any:
        """A sequence without tokens."""

    def append(self, sequence: Any, row: Rows) -> None:
        """Add one token to ``sequence``."""

    def taken(self, sequence: Any) -> int:
        """Bytes that ``sequence`` has to itself."""

    def close(self, sequence: Any) -> None:
        """Give back what ``sequence`` holds."""


class Concatenation:
    """An array of keys and one of values for each layer; joined with one row for each token."""

    mapped_bytes = 0

    def __init__(self, layout: KVLayout, tokens: int) -> None:
        """``tokens``, the room a pool would have, means nothing here."""
        self._layout = layout

    def open(self) -> list[Rows]:
        """Arrays without rows."""
        layers, heads, channels = sizes_of(self._layout)
        return [np.empty((heads, 0, channels), np.uint16) for _ in range(2 * layers)]

    def append(self, sequence: list[Rows], row: Rows) -> None:
        """A new array of each, one row longer; the old one goes."""
        for index, array in enumerate(sequence):
            sequence[index] = np.concatenate((array, row[index // 2, index % 2]), axis=1)

    def taken(self, sequence: list[Rows]) -> int:
        """Those of its arrays."""
        return sum(array.nbytes for array in sequence)

    def close(self, sequence: list[Rows]) -> None:
        """Drop the arrays."""
        sequence.clear()


class Pages:
    """The engine's pool: a page for every ``page_size`` tokens, all layers in it."""

    def __init__(self, layout: KVLayout, tokens: int) -> None:
        """Room for ``tokens`` tokens, taken now."""
        self._size = layout.page_size
        self._pool = PagePool(layout, layout.pages_for(tokens))
        self.mapped_bytes = self._pool.nbytes
        layers, heads, channels = sizes_of(layout)
        rows = self._pool.data.view(np.uint16)
        self._rows = rows.reshape(-1, layers, 2, heads, self._size, channels)

    def open(self) -> list[int]:
        """The number of tokens, then a table of pages."""
        return [0]

    def append(self, sequence: list[int], row: Rows) -> None:
        """Write the row where it belongs, in each layer; a page now and then."""
        at = sequence[0] % self._size
        if at == 0:
            sequence += self._pool.alloc(1) or []
        page = self._rows[sequence[-1]]
        for layer in range(page.shape[0]):
            for kind in (0, 1):
                page[layer, kind, :, at] = row[layer, kind, :, 0]
        sequence[0] += 1

    def rows(self, sequence: list[int], layer: int, kind: int) -> Rows:
        """The keys (``kind`` 0) or values of a layer: uint16[kv heads, tokens, head_dim]."""
        pages = self._rows[sequence[1:], layer, kind]  # [pages, kv heads, page_size, head_dim]
        joined = pages.transpose(1, 0, 2, 3).reshape(pages.shape[1], -1, pages.shape[3])
        return joined[:, : sequence[0]]

    def taken(self, sequence: list[int]) -> int:
        """Those of its pages."""
        return (len(sequence) - 1) * self._pool.layout.page_bytes

    def close(self, sequence: list[int]) -> None:
        """The pages go back to the pool."""
        self._pool.release(sequence[1:])
        sequence[:] = [0]


HOLDERS: Mapping[str, Callable[[KVLayout, int], Holder]] = {
    "concatenation": Concatenation,
    "pool": Pages,
}


def row_of(layout: KVLayout) -> Rows:
    """The keys and values of some token."""
    layers, heads, channels = sizes_of(layout)
    return np.ones((layers, 2, heads, 1, channels), np.uint16)


def sizes_of(layout: KVLayout) -> tuple[int, int, int]:
    """Layers, KV heads and channels of a head, where all layers are alike."""
    layer = layout.layers[0]
    return len(layout.layers), layer.kv_heads, layer.key_dim
