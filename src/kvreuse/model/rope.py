"""Tables of the rotary position embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .spec import RopeSpec

Table = npt.NDArray[np.float32]


def rope_tables(rope: RopeSpec, positions: int) -> tuple[Table, Table]:
    """Cosines and sines, float32[positions, dims / 2], computed in float64 (Su et al., 2021).

    Pair i turns by ``position * base ** (-2 i / dims)``. The tables are made once, for all
    positions that will ever be served: a position's row never depends on which others are asked.
    """
    half = rope.dims // 2
    frequencies = rope.base ** (-np.arange(half, dtype=np.float64) * 2 / rope.dims)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
