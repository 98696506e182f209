"""bf16 planes: rounding, the place of every element, and the way back."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.kv.codec import BF16, Kind, from_bf16, to_bf16


def rounded(value: float) -> float:
    """The bfloat16 nearest to ``value``, ties to the even one, by trying both neighbours."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    low, high = (float_of(pattern) for pattern in (below, above))
    if math.isinf(high) and not math.isinf(value):
        high = math.copysign(2.0**128, value)  # where infinity stands among the finite ones
    if abs(value - low) == abs(high - value):
        return float_of(below if not below & 0x10000 else above)
    return float_of(below if abs(value - low) < abs(high - value) else above)


def float_of(bits: int) -> float:
    """The float32 with these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounds_to_the_nearest_even(value: float) -> None:
    stored = from_bf16(to_bf16(np.array([value], dtype=np.float32)))
    expected = np.float32(rounded(value))
    assert stored[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (-0.0, 0x8000)],
)
def test_known_roundings(value: float, bits: int) -> None:
    assert to_bf16(np.array([value], dtype=np.float32))[0] == bits


def test_infinity_and_nan_stay_what_they_are() -> None:
    values = np.array([np.inf, -np.inf, np.nan], dtype=np.float32)
    lowest_nan = np.array([0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    stored = from_bf16(to_bf16(np.concatenate([values, lowest_nan])))
    assert stored[0] == np.inf
    assert stored[1] == -np.inf
    assert np.isnan(stored[2:]).all()


def place(kind: Kind, token: int, channel: int, head_dim: int) -> int:
    """Index, in elements, of a channel of a token in its plane, from the layout in words."""
    tile, token = divmod(token, 32)
    start = tile * 32 * head_dim
    if kind == "key":
        half, token = divmod(token, 16)
        pair, within = divmod(channel, 2)
        return start + ((half * (head_dim // 2) + pair) * 16 + token) * 2 + within
    group, channel = divmod(channel, 16)
    pair, within = divmod(token, 2)
    return start + ((group * 16 + pair) * 16 + channel) * 2 + within


@pytest.mark.parametrize("kind", ["key", "value"])
@pytest.mark.parametrize(("tokens", "head_dim"), [(32, 32), (64, 64), (96, 128), (32, 256)])
def test_every_element_has_its_place(kind: Kind, tokens: int, head_dim: int) -> None:
    rows = np.random.default_rng(7).normal(size=(tokens, head_dim)).astype(np.float32)
    plane = BF16.encode(rows, kind)
    assert plane.shape == (tokens * BF16.row_bytes(head_dim),)
    elements, halves = plane.view(np.uint16), to_bf16(rows)
    places = [
        [place(kind, token, channel, head_dim) for channel in range(head_dim)]
        for token in range(tokens)
    ]
    assert sorted(np.ravel(places)) == list(range(tokens * head_dim))
    assert (elements[places] == halves).all()


@pytest.mark.parametrize("kind", ["key", "value"])
@pytest.mark.parametrize(("tokens", "head_dim"), [(32, 32), (64, 64), (96, 128), (32, 256)])
def test_decode_undoes_encode(kind: Kind, tokens: int, head_dim: int) -> None:
    rows = np.random.default_rng(8).normal(size=(tokens, head_dim)).astype(np.float32)
    decoded = BF16.decode(BF16.encode(rows, kind), head_dim, kind)
    assert (decoded == from_bf16(to_bf16(rows))).all()
    assert np.abs(decoded - rows).max() <= 2**-8 * np.abs(rows).max()


@pytest.mark.parametrize("shape", [(31, 64), (0, 24), (32, 24)])
def test_rows_must_fill_tiles(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fill tiles"):
        BF16.encode(np.zeros(shape, dtype=np.float32), "key")
