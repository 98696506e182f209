"""Sizes and offsets of a page, their inverses, and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.config import KV_CACHE_DTYPES
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import UNIFORM, KVCodec, make_codec
from kvreuse.kv.layout import KVLayout, Plane
from kvreuse.ops import reference
from kvreuse.shape import KINDS, LayerShape, ModelShape, RopeSpec, attention

from .planes_of_pages import decode, encode, layer_bytes, plane_bytes

SMOLLM2 = KVLayout.uniform(num_layers=30, num_kv_heads=3, head_dim=64)
SHAPE = ModelShape(
    architecture="llama",
    layers=(attention(3, 64),) * 30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    vocab_size=49152,
    context_length=8192,
    rms_norm_eps=1e-5,
    rope=RopeSpec("interleaved", 1e5, 64),
)


def test_sizes_of_a_known_model() -> None:
    assert plane_bytes(SMOLLM2, Plane(0, "key", 0)) == slice(0, 4096)
    assert plane_bytes(SMOLLM2, Plane(29, "value", 2)) == slice(30 * 24576 - 4096, 30 * 24576)
    assert layer_bytes(SMOLLM2, 0) == slice(0, 24576)
    assert layer_bytes(SMOLLM2, 29) == slice(29 * 24576, 30 * 24576)
    assert SMOLLM2.page_bytes == 737280
    assert SMOLLM2.bytes_per_token == 22.5 * 1024


@pytest.mark.parametrize(
    ("name", "head_dim", "most"),
    [
        ("int8", 64, 0.532),
        ("int8", 128, 0.516),
        ("k8v4", 64, 0.41),
        ("k8v4", 128, 0.40),
        ("int4", 64, 0.29),
        ("int4", 128, 0.282),
    ],
)
def test_share_of_the_bytes_of_bf16(name: str, head_dim: int, most: float) -> None:
    codec = codec_for(name, 4, 2, head_dim)
    plain, small = (KVLayout.uniform(4, 2, head_dim, codec=c) for c in (KVCodec(), codec))
    assert small.bytes_per_token <= most * plain.bytes_per_token


def codec_for(name: str, layers: int, heads: int, head_dim: int, seed: int = 0) -> KVCodec:
    """A codec; ``auto`` with widths by chance."""
    widths = np.random.default_rng(seed).integers(0, 3, (layers, 2, heads)).astype(np.uint8)
    calibration = Calibration("model", widths=widths) if name == "auto" else None
    return make_codec(name, (attention(heads, head_dim),) * layers, calibration)


def layout(
    name: str, layers: int, heads: int, head_dim: int, page_size: int, seed: int
) -> KVLayout:
    codec = codec_for(name, layers, heads, head_dim, seed)
    return KVLayout.uniform(layers, heads, head_dim, page_size, codec)


layouts = st.builds(
    layout,
    name=st.sampled_from(KV_CACHE_DTYPES),
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 80, 96, 128]),
    page_size=st.sampled_from([32, 64, 96]),
    seed=st.integers(0, 9),
)


def mixed(name: str, layers: list[LayerShape], page_size: int) -> KVLayout:
    return KVLayout(tuple(layers), page_size, make_codec(name, layers))


head_dims = st.sampled_from([32, 64, 80, 96, 128])
attending = st.builds(
    LayerShape,
    kv_heads=st.integers(1, 4),
    key_dim=head_dims,
    value_dim=head_dims,
    window=st.one_of(st.none(), st.integers(1, 99)),
)
latent = st.builds(LayerShape, kv_heads=st.just(1), key_dim=st.just(576))
recurrent = st.builds(LayerShape, conv=st.integers(1, 9), state=st.integers(1, 9))


def mixtures(*layers: st.SearchStrategy[LayerShape]) -> st.SearchStrategy[KVLayout]:
    """Layouts whose layers differ in heads and widths."""
    return st.builds(
        mixed,
        name=st.sampled_from(list(UNIFORM)),
        layers=st.lists(st.one_of(*layers), min_size=1, max_size=5),
        page_size=st.sampled_from([32, 64, 96]),
    )


@given(st.one_of(layouts, mixtures(attending, latent, recurrent)))
def test_planes_tile_the_page_in_order(layout: KVLayout) -> None:
    end = 0
    for plane in layout.planes():
        found = plane_bytes(layout, plane)
        assert found.start == end
        assert end % 64 == 0  # a whole cache line
        end = found.stop
    assert end == layout.page_bytes == layout.bytes_per_token * layout.page_size
    layers = [layer_bytes(layout, i) for i, layer in enumerate(layout.layers) if layer.rows]
    assert all(one.stop == next_.start for one, next_ in itertools.pairwise(layers))
    assert layout.planes() == sorted(layout.planes())
    assert len(layout.codec_ids()) == len(layout.clips()) == len(layout.planes())


@settings(deadline=None, max_examples=30)
@given(st.one_of(layouts, mixtures(attending)), st.integers(0, 99))
def test_a_page_gives_back_what_was_written(layout: KVLayout, seed: int) -> None:
    """Every plane, and nothing of a plane in another; the rows of a page in two goes."""
    rng = np.random.default_rng(seed)
    pages = np.full((2, layout.page_bytes), 0xFF, dtype=np.uint8)
    tokens = np.arange(layout.page_size, dtype=np.int32)
    ones = np.ones_like(tokens)
    rows = {
        (number, kind): rng.standard_normal(
            (layout.page_size, layer.kv_heads, layer.width(kind))
        ).astype(np.float32)
        for number, layer in enumerate(layout.layers)
        for kind in KINDS
    }
    for some in (tokens[::2], tokens[1::2]):
        for layer in range(len(layout.layers)):
            k, v = rows[layer, "key"][some], rows[layer, "value"][some]
            reference.write_rows(pages, layout, layer, (ones[some], some), k=k, v=v)
    for layer, kind, head in layout.planes():
        plane = pages[1, plane_bytes(layout, Plane(layer, kind, head))]
        codec = layout.plane_codec(layer, kind, head)
        np.testing.assert_array_equal(plane, encode(codec, rows[layer, kind][:, head], kind))
        read = reference.read_rows(pages, layout, layer, (ones, tokens))[kind == "value"][:, head]
        width = layout.layers[layer].width(kind)
        np.testing.assert_array_equal(read, decode(codec, plane, width, kind))
    assert (pages[0] == 0xFF).all()
    reference.copy_rows(pages, layout, 1, 0, layout.page_size)
    np.testing.assert_array_equal(pages[0], pages[1])


@given(layouts, st.integers(0, 10_000))
def test_pages_for_is_the_least_that_holds(layout: KVLayout, tokens: int) -> None:
    pages = layout.pages_for(tokens)
    assert pages * layout.page_size >= tokens
    assert pages == 0 or (pages - 1) * layout.page_size < tokens


def test_a_layout_of_a_model() -> None:
    assert KVLayout.of(SHAPE) == SMOLLM2
    assert KVLayout.of(SHAPE, page_size=64).page_bytes == 2 * SMOLLM2.page_bytes


@pytest.mark.parametrize("page_size", [0, -32, 1, 33, 48])
def test_page_size_is_a_multiple_of_a_tile(page_size: int) -> None:
    with pytest.raises(ConfigError, match=f"multiple of 32 tokens, got {page_size}"):
        KVLayout.uniform(30, 3, 64, page_size)


def test_the_fingerprint_is_the_same_in_every_process_and_version() -> None:
    assert SMOLLM2.fingerprint().hex() == (
        "55c3bc0fb3acdf9ee41ff808b9a75c750bd8253e9b0d267d24a76468797e3d20"
    )
    assert KVLayout.uniform(30, 3, 64).fingerprint() == SMOLLM2.fingerprint()


@given(layouts)
def test_the_fingerprint_of_equal_layers_is_what_it_always_was(layout: KVLayout) -> None:
    codec = layout.codec.identity(layout.codec_ids())
    layer = layout.layers[0]
    text = (
        f"kvreuse page 1;codec={codec};layers={len(layout.layers)};kv_heads={layer.kv_heads};"
        f"head_dim={layer.key_dim};page_size={layout.page_size}"
    )
    assert layout.fingerprint() == hashlib.sha256(text.encode()).digest()


def test_windows_and_states_are_not_in_a_page() -> None:
    layers = tuple(dataclasses.replace(x, window=9, conv=5, state=7) for x in SMOLLM2.layers)
    assert KVLayout(layers).fingerprint() == SMOLLM2.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (attention(3, 64),) * 3},
        {"layers": (attention(30, 64),) * 30},
        {"layers": (attention(3, 32),) * 30},
        {"layers": (*SMOLLM2.layers[1:], attention(1, 64))},
        {"layers": (attention(1, 64), *SMOLLM2.layers[1:])},
        {"layers": (*SMOLLM2.layers[1:], LayerShape(3, 32, 64))},
        {"layers": (*SMOLLM2.layers[1:], LayerShape(3, 64, 32))},
        {"layers": (*SMOLLM2.layers[1:], LayerShape())},
        {"page_size": 64},
        {"codec": codec_for("int8", 30, 3, 64)},
    ],
)
def test_everything_counts_in_the_fingerprint(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SMOLLM2, **change).fingerprint() != SMOLLM2.fingerprint()


def test_everything_about_a_codec_counts_in_the_fingerprint() -> None:
    widths = np.ones((30, 2, 3), dtype=np.uint8)
    other = widths.copy()
    other[7, 1, 2] = 2
    calibrations = [
        None,
        Calibration("model", widths=widths),
        Calibration("model", widths=other),
        Calibration("model", widths=widths, hadamard_values=False),
        Calibration("model", widths=widths, clips=np.full((30, 2, 3), 0.9, dtype=np.float32)),
        Calibration("another", widths=widths),
    ]
    prints = {
        KVLayout.of(SHAPE, codec=made(SHAPE, name, calibration)).fingerprint()
        for calibration in calibrations
        for name in KV_CACHE_DTYPES
        if name != "auto" or calibration is not None
    }
    bf16 = 1
    assert len(prints) == bf16 + 3 * len(calibrations) + (len(calibrations) - 1)


def made(shape: ModelShape, name: str, calibration: Calibration | None) -> KVCodec:
    return make_codec(name, shape.layers, calibration)
