"""Page keys: the same in every process, and different where anything differs."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.keys import (
    namespace,
    page_key,
    root_key,
    sha256,
    shared_tokens,
    token_bytes,
    token_ids,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=8)
FIELDS = st.dictionaries(
    st.sampled_from(("weights", "layout", "rope")), st.binary(max_size=6) | st.text(max_size=3)
)
SALTS = st.none() | st.text(max_size=4)


def test_a_chain_written_out() -> None:
    space = hashlib.sha256(b"kvreuse namespace 1;layout:2=ab;weights:1=7").digest()
    assert namespace(weights=7, layout=b"ab") == space
    root = hashlib.sha256(space + b"\0").digest()
    assert root_key(space, None) == root
    first = hashlib.sha256(root + struct.pack("<3i", 5, 0, 49151)).digest()
    assert page_key(root, token_bytes([5, 0, 49151])) == first
    second = hashlib.sha256(first + struct.pack("<1i", 2**31 - 1)).digest()
    assert page_key(first, token_bytes([2**31 - 1])) == second
    assert second.hex()[:16] == "6b606cc73107ca01"


def test_a_salt_written_out() -> None:
    space = bytes(32)
    salted = hashlib.sha256(space + b"\1" + hashlib.sha256("mañana".encode()).digest()).digest()
    assert root_key(space, "mañana") == salted


@settings(deadline=None)
@given(FIELDS, FIELDS)
def test_namespaces_are_equal_only_if_every_field_is(
    one: dict[str, bytes | str], other: dict[str, bytes | str]
) -> None:
    def as_bytes(fields: dict[str, bytes | str]) -> dict[str, bytes]:
        return {k: v.encode() if isinstance(v, str) else v for k, v in fields.items()}

    assert (namespace(**one) == namespace(**other)) == (as_bytes(one) == as_bytes(other))


def test_no_value_passes_for_another_field() -> None:
    assert namespace(weights=b"1;layout:1=2") != namespace(weights=b"1", layout=b"2")
    assert namespace(weights=b"12", layout=b"") != namespace(weights=b"1", layout=b"2")


@settings(deadline=None)
@given(SALTS, SALTS)
def test_salts_share_a_root_only_if_they_are_equal(one: str | None, other: str | None) -> None:
    assert (root_key(b"n" * 32, one) == root_key(b"n" * 32, other)) == (one == other)


@pytest.mark.parametrize(
    "pair", [("\ud83d\ude00", "\U0001f600"), ("\u00e9", "e\u0301"), ("a", "a\0")]
)
def test_salts_that_look_alike(pair: tuple[str, str]) -> None:
    assert root_key(b"n" * 32, pair[0]) != root_key(b"n" * 32, pair[1])


@settings(deadline=None)
@given(SALTS, IDS)
def test_what_is_hashed_for_a_salt_never_has_the_length_of_tokens(
    salt: str | None, ids: list[int]
) -> None:
    hashed: list[bytes] = []

    def watching(data: bytes) -> bytes:
        hashed.append(data)
        return sha256(data)

    page_key(root_key(sha256(b"n"), salt, watching), token_bytes(ids), watching)
    root, page = hashed
    assert len(root) % 4 == 1
    assert len(page) % 4 == 0


@settings(deadline=None)
@given(IDS)
def test_token_bytes_depend_on_the_ids_alone(ids: list[int]) -> None:
    tokens = token_bytes(ids)
    assert tokens == struct.pack(f"<{len(ids)}i", *ids)
    for dtype in ("<i4", ">i4", "<i8", "<u4"):
        assert token_bytes(np.array(ids, dtype=dtype)) == tokens
    assert token_bytes(np.array([ids, ids], dtype=np.int32).T[:, 0]) == tokens
    assert token_ids(tokens) == tuple(ids)


@settings(deadline=None)
@given(IDS, IDS, IDS)
def test_shared_tokens(start: list[int], one: list[int], other: list[int]) -> None:
    one, other = start + one, start + other
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert shared_tokens(token_bytes(one), token_bytes(other)) == expected
    assert expected >= len(start)


@pytest.mark.parametrize("bit", range(32))
def test_tokens_that_differ_in_one_bit(bit: int) -> None:
    one = np.array([3, 1, 4, 1], dtype=np.uint32)
    other = one.copy()
    other[2] ^= np.uint32(1 << bit)
    assert shared_tokens(one.tobytes(), other.tobytes()) == 2
