"""Sizes and offsets of a page, their inverses, and the fingerprint."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.errors import ConfigError
from kvreuse.kv.codec import Bf16Codec, Kind
from kvreuse.kv.layout import KVLayout
from kvreuse.model.spec import ModelSpec, RopeSpec

SMOLLM2 = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64)
KINDS: tuple[Kind, Kind] = ("key", "value")


def test_sizes_of_a_known_model() -> None:
    assert SMOLLM2.row_bytes == 128
    assert SMOLLM2.plane_bytes == 4096
    assert SMOLLM2.layer_bytes == 24576
    assert SMOLLM2.page_bytes == 737280
    assert SMOLLM2.bytes_per_token == 22.5 * 1024


layouts = st.builds(
    KVLayout,
    num_layers=st.integers(1, 5),
    num_kv_heads=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 96, 128]),
    page_size=st.sampled_from([32, 64, 96]),
)


@given(layouts)
def test_planes_tile_the_page_in_order(layout: KVLayout) -> None:
    offsets = [
        layout.plane_offset(layer, kind, head)
        for layer in range(layout.num_layers)
        for kind in KINDS
        for head in range(layout.num_kv_heads)
    ]
    assert offsets == list(range(0, layout.page_bytes, layout.plane_bytes))
    assert layout.plane_offset(layout.num_layers - 1, "key", 0) == (
        layout.page_bytes - layout.layer_bytes
    )
    assert layout.bytes_per_token * layout.page_size == layout.page_bytes


@given(layouts, st.integers(0, 10_000))
def test_pages_for_is_the_least_that_holds(layout: KVLayout, tokens: int) -> None:
    pages = layout.pages_for(tokens)
    assert pages * layout.page_size >= tokens
    assert pages == 0 or (pages - 1) * layout.page_size < tokens


def test_a_layout_of_a_model() -> None:
    spec = ModelSpec(
        architecture="llama",
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        context_length=8192,
        rms_norm_eps=1e-5,
        rope=RopeSpec("interleaved", 1e5, 64),
    )
    assert KVLayout.of(spec) == SMOLLM2
    assert KVLayout.of(spec, page_size=64).page_bytes == 2 * SMOLLM2.page_bytes


@pytest.mark.parametrize("page_size", [0, -32, 1, 33, 48])
def test_page_size_is_a_multiple_of_a_tile(page_size: int) -> None:
    with pytest.raises(ConfigError, match=f"multiple of 32 tokens, got {page_size}"):
        KVLayout(30, 3, 64, page_size)


def test_the_fingerprint_is_the_same_in_every_process_and_version() -> None:
    assert SMOLLM2.fingerprint().hex() == (
        "55c3bc0fb3acdf9ee41ff808b9a75c750bd8253e9b0d267d24a76468797e3d20"
    )
    assert KVLayout(30, 3, 64).fingerprint() == SMOLLM2.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 3},
        {"num_kv_heads": 30},
        {"head_dim": 32},
        {"page_size": 64},
        {"codec": Bf16Codec(name="other")},
    ],
)
def test_everything_counts_in_the_fingerprint(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SMOLLM2, **change).fingerprint() != SMOLLM2.fingerprint()
