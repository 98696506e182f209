"""Plane codecs: encoding of rows, the place of every byte, and decoding."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.codec.floats import from_bf16, to_bf16
from kvreuse.kv.codec.planes import BF16, INT4, INT8, PLANE_CODECS, PlaneCodec
from kvreuse.kv.codec.rows import GROUP, quantize_int4, quantize_int8
from kvreuse.shape import KINDS, Kind

from ..planes_of_pages import decode, encode

Float32 = npt.NDArray[np.float32]
HEAD_DIMS = (16, 64, 80, 96, 128, 256)


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


def place(codec: PlaneCodec, kind: Kind, token: int, channel: int, head_dim: int) -> int:
    """Index, in half bytes, of a channel of a token in its tile, from the layout in words."""
    half, sixteenth = divmod(token, 16)
    if codec == BF16 and kind == "key":
        pair, within = divmod(channel, 2)
        return 4 * (((half * (head_dim // 2) + pair) * 16 + sixteenth) * 2 + within)
    if codec == BF16:
        return 4 * (((channel // 16 * 16 + token // 2) * 16 + channel % 16) * 2 + token % 2)
    if codec == INT8 and kind == "key":
        unit, within = divmod(channel, 4)
        return 2 * (((half * (head_dim // 4) + unit) * 16 + sixteenth) * 4 + within)
    if codec == INT8:
        return 2 * (((channel // 16 * 8 + token // 4) * 16 + channel % 16) * 4 + token % 4)
    if kind == "key":
        unit, within = divmod(channel, 8)
        byte = ((half * (head_dim // 8) + unit) * 16 + sixteenth) * 4 + within % 4
        return 2 * byte + within // 4
    unit, within = divmod(channel, 32)
    byte = ((unit * 8 + token // 4) * 16 + within % 16) * 4 + token % 4
    return 2 * byte + within // 16


def random_rows(tokens: int, head_dim: int, seed: int = 7, scale: float = 1.0) -> Float32:
    rows = np.random.default_rng(seed).normal(size=(tokens, head_dim)) * scale
    return rows.astype(np.float32)


@pytest.mark.parametrize("codec", PLANE_CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_channel_has_its_place(codec: PlaneCodec, kind: Kind, head_dim: int) -> None:
    rows = random_rows(64, head_dim)
    tiles = encode(codec, rows, kind).reshape(2, -1)
    halves = np.stack([tiles & 15, tiles >> 4], axis=2).reshape(2, -1)  # half bytes, low first
    width = {"bf16": 4, "int8": 2, "int4": 1}[codec.name]
    if codec == BF16:
        whole = to_bf16(rows).astype(np.int64)
    else:
        q = quantize_int8(rows).q + 128 if codec == INT8 else quantize_int4(rows).q
        whole = q.astype(np.int64)
    for token in (0, 1, 5, 15, 16, 31, 32, 63):
        for channel in range(0, head_dim, 5):
            at = place(codec, kind, token % 32, channel, head_dim)
            found = sum(int(halves[token // 32, at + i]) << 4 * i for i in range(width))
            assert found == whole[token, channel]


@pytest.mark.parametrize("codec", PLANE_CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_bytes_of_tokens_fill_a_tile(codec: PlaneCodec, kind: Kind, head_dim: int) -> None:
    places = codec.places(head_dim, kind)
    assert places.shape == (32, codec.row_bytes(head_dim, kind))
    assert sorted(places.reshape(-1).tolist()) == list(range(places.size))


@pytest.mark.parametrize("codec", [INT8, INT4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_scales_lie_behind_the_codes(codec: PlaneCodec, kind: Kind, head_dim: int) -> None:
    rows = random_rows(32, head_dim, scale=3)
    tile = encode(codec, rows, kind)
    if codec == INT8:
        numbers = tile[32 * head_dim :].view(np.float32).reshape(1, 32)
        expected = [quantize_int8(rows).scale.T]
    else:
        groups = -(-head_dim // GROUP)
        numbers = tile[-128 * groups :].view(np.float16).reshape(2 * groups, 32).astype(np.float32)
        _, scale, minimum = quantize_int4(rows)
        assert minimum is not None
        expected = [scale.T, minimum.T]
    np.testing.assert_array_equal(numbers, np.concatenate(expected))


@pytest.mark.parametrize(
    ("codec", "head_dim", "key", "value"),
    [
        (BF16, 64, 128, 128),
        (INT8, 64, 68, 68),
        (INT8, 128, 132, 132),
        (INT4, 64, 36, 36),
        (INT4, 128, 72, 72),
        (INT4, 80, 48, 56),  # values: three units of 32 channels, two groups
        (INT4, 96, 56, 56),
        (INT4, 256, 144, 144),
    ],
)
def test_bytes_of_a_row(codec: PlaneCodec, head_dim: int, key: int, value: int) -> None:
    assert codec.row_bytes(head_dim, "key") == key
    assert codec.row_bytes(head_dim, "value") == value


shapes = st.tuples(st.sampled_from([32, 64]), st.sampled_from([16, 80, 64, 96, 144]))
scales = st.floats(-20, 4).map(lambda power: float(2.0**power))


@settings(deadline=None, max_examples=30)
@given(shapes, st.sampled_from(PLANE_CODECS), st.sampled_from(KINDS), st.integers(0, 99), scales)
def test_decode_undoes_encode(
    shape: tuple[int, int], codec: PlaneCodec, kind: Kind, seed: int, scale: float
) -> None:
    """Within half a step of each row, and its rounding to half precision."""
    rows = random_rows(*shape, seed, scale)
    decoded = decode(codec, encode(codec, rows, kind), shape[1], kind)
    error = np.abs(decoded - rows)
    if codec == BF16:
        assert (decoded == from_bf16(to_bf16(rows))).all()
    elif codec == INT8:
        assert (error <= np.abs(rows).max(axis=1, keepdims=True) * 0.5001 / 127).all()
    else:
        for start in range(0, shape[1], GROUP):
            group = rows[:, start : start + GROUP]
            low, high = group.min(axis=1, keepdims=True), group.max(axis=1, keepdims=True)
            step = np.maximum((high - low) / 15, 2.0**-14)
            # the top level is short of the range by 15 roundings of the scale, and one of the start
            bound = 0.5 * step + (15 * step + np.abs(low)) * 2.0**-10 + 2.0**-14
            assert (error[:, start : start + GROUP] <= bound).all()


@pytest.mark.parametrize("codec", [INT8, INT4], ids=lambda codec: codec.name)
def test_a_row_is_encoded_by_itself(codec: PlaneCodec) -> None:
    rows = random_rows(32, 96)
    together = codec.pack(rows, "key", 0.9)
    alone = np.concatenate([codec.pack(row[None], "key", 0.9) for row in rows])
    np.testing.assert_array_equal(together, alone)


def test_a_clip_gives_finer_steps_and_cuts_the_ends() -> None:
    rows = random_rows(32, 64)
    for quantize, levels in ((quantize_int8, 127), (quantize_int4, 15)):
        whole, cut = quantize(rows), quantize(rows, 0.5)
        np.testing.assert_allclose(cut.scale, whole.scale / 2, rtol=2e-3)
        assert cut.q.max() == levels
        assert (np.abs(cut.q) == levels).sum() > (np.abs(whole.q) == levels).sum()
        assert (cut.q == 0).sum() > 32 if whole.minimum is not None else cut.q.min() == -127


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.1e38])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_none(bad: float, kind: Kind) -> None:
    """The row (int4: the group) is decoded as NaN; its neighbours are not affected."""
    clean, rows = random_rows(32, 96), random_rows(32, 96)
    rows[3, 70] = bad
    for codec in (INT8, INT4):
        found, expected = (decode(codec, encode(codec, x, kind), 96, kind) for x in (rows, clean))
        lost = np.zeros((32, 96), dtype=bool)
        lost[3, 0 if codec == INT8 else GROUP :] = True
        assert np.isnan(found[lost]).all()
        np.testing.assert_array_equal(found[~lost], expected[~lost])


def test_rows_beyond_half_precision_are_no_numbers_in_int4() -> None:
    rows = np.zeros((32, 64), dtype=np.float32)
    rows[0, 0], rows[1, 0], rows[2, 0] = -7e4, 2e6, 6e4
    rows[4, :2] = -2.9e38, 2.9e38  # a range beyond single precision
    found = decode(INT4, encode(INT4, rows, "key"), 64, "key")
    assert [row for row in range(32) if np.isnan(found[row]).any()] == [0, 1, 4]
    assert abs(found[2, 0] / 6e4 - 1) < 1e-3


def test_tiny_and_empty_rows() -> None:
    rows = np.zeros((32, 64), dtype=np.float32)
    rows[1] = 1e-39  # a denormal, zero to every kernel
    rows[2, 0] = 1e-38
    rows[3] = 5.0  # no range: the minimum is all of it
    for codec in (INT8, INT4):
        found = decode(codec, encode(codec, rows, "value"), 64, "value")
        assert not found[:2].any()
        np.testing.assert_allclose(found[3], 5, rtol=1e-3)
        assert np.abs(found[2]).max() <= 2e-38
