"""MemoryPlan and its inverse: what fits does, one more does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.codec.codec import UNIFORM, make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.buffers import StepShape
from kvreuse.plan.memory import UNBOUNDED, KVPlan, MemoryPlan, token_bytes
from kvreuse.shape import CacheShape, LayerShape, ModelShape, RopeSpec, attention

BACKEND = NativeBackend(threads=2)

windows = st.one_of(st.none(), st.integers(1, 200))
layers = st.builds(
    LayerShape,
    kv_heads=st.integers(0, 4),
    key_dim=st.sampled_from([32, 64, 96]),
    value_dim=st.sampled_from([0, 32, 48]),
    window=windows,
    conv=st.integers(0, 50),
    state=st.integers(0, 50),
)
shapes = st.builds(
    CacheShape,
    st.just("any"),
    st.lists(layers, min_size=1, max_size=5).map(tuple),
    st.one_of(st.none(), st.integers(1, 5000)),
)


def served(windows: list[int | None], context_length: int) -> ModelShape:
    """A shape whose buffers are counted, too."""
    return ModelShape(
        architecture="any",
        layers=tuple(attention(2, 32, window) for window in windows),
        context_length=context_length,
        hidden_size=64,
        intermediate_size=128,
        num_heads=8,
        vocab_size=500,
        rms_norm_eps=1e-5,
        rope=RopeSpec("half", 1e4, 32),
    )


served_shapes = st.builds(served, st.lists(windows, min_size=1, max_size=5), st.integers(1, 5000))


def plan(shape: CacheShape, *, by_reserved: bool, codec: str = "bf16") -> MemoryPlan:
    return MemoryPlan(KVPlan(shape, codec), 1000, by_reserved, StepShape(BACKEND))


@pytest.mark.parametrize(
    ("codec", "width", "key", "value"),
    [
        ("bf16", 64, 128, 128),
        ("int8", 64, 68, 68),
        ("int4", 64, 32 + 4, 32 + 4),
        ("int4", 128, 64 + 8, 64 + 8),
        ("int4", 80, 40 + 8, 48 + 8),  # two groups; values in three units of 32
        ("int4", 16, 8 + 4, 16 + 4),
        ("k8v4", 128, 132, 72),
        ("int8", 576, 580, 580),
    ],
)
def test_a_row(codec: str, width: int, key: int, value: int) -> None:
    assert token_bytes(LayerShape(1, width, 0), codec) == key
    assert token_bytes(LayerShape(1, 0, width), codec) == value
    assert token_bytes(LayerShape(3, width, width), codec) == 3 * (key + value)


@given(shape=shapes, codec=st.sampled_from(list(UNIFORM)))
def test_the_pages_of_the_engine_have_these_rows(shape: CacheShape, codec: str) -> None:
    layout = KVLayout.of(shape, 64, make_codec(codec, shape.layers))
    kv = KVPlan(shape, codec, 64)
    assert (layout.bytes_per_token, layout.page_bytes) == (kv.token_bytes, kv.page_bytes)


@settings(max_examples=200, deadline=None)
@given(
    shape=st.one_of(shapes, served_shapes),
    by_reserved=st.booleans(),
    codec=st.sampled_from(list(UNIFORM)),
    budget=st.integers(0, 1 << 30),
    tokens=st.integers(1, 3000),
    parallel=st.integers(1, 50),
    shared=st.integers(0, 300),
)
def test_the_inverse_is_exact(
    shape: CacheShape,
    by_reserved: bool,
    codec: str,
    budget: int,
    tokens: int,
    parallel: int,
    shared: int,
) -> None:
    p = plan(shape, by_reserved=by_reserved, codec=codec)
    context = p.largest_context(budget, parallel, shared)
    limit = shape.context_length or UNBOUNDED
    if context:
        assert max(1, shared) <= context <= limit
        assert p.total(context, parallel, shared) <= budget
        assert context == limit or p.total(context + 1, parallel, shared) > budget
    else:
        least = max(1, shared)
        assert least > limit or p.total(least, parallel, shared) > budget
    shared = min(shared, tokens)
    batch = p.largest_batch(budget, tokens, shared)
    assert batch == 0 or p.total(tokens, batch, shared) <= budget
    assert batch == UNBOUNDED or p.total(tokens, batch + 1, shared) > budget


def tokens_kept(layer: LayerShape, tokens: int, parallel: int, shared: int) -> int:
    """Count them one by one: a token of the prefix once, a token of a sequence's own each."""
    first = 0 if layer.window is None else max(0, tokens - layer.window)
    kept = {
        (None if position < shared else sequence, position)
        for sequence in range(parallel)
        for position in range(first, tokens)
    }
    return len(kept)


@settings(max_examples=50, deadline=None)
@given(shape=shapes, tokens=st.integers(1, 250), parallel=st.integers(1, 4), data=st.data())
def test_bytes_are_those_of_the_tokens_kept(
    shape: CacheShape, tokens: int, parallel: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, tokens))
    kv = KVPlan(shape)
    rows = sum(
        tokens_kept(layer, tokens, parallel, shared)
        * (2 * layer.kv_heads * (layer.key_dim + layer.value_dim))
        for layer in shape.layers
    )
    states = sum(2 * layer.conv + 4 * layer.state for layer in shape.layers)
    assert kv.needed(tokens, parallel, shared) == rows + parallel * states
    pages = {
        (None if (page + 1) * 32 <= shared else sequence, page)
        for sequence in range(parallel)
        for page in range(-(-tokens // 32))
    }
    assert kv.pages(tokens, parallel, shared) == len(pages)
    assert kv.reserved(tokens, parallel, shared) == len(pages) * kv.page_bytes + parallel * states


def test_without_windows_whole_pages_need_what_is_reserved() -> None:
    kv = KVPlan(CacheShape("any", (attention(2, 64), attention(4, 32)), None), "int4", 64)
    assert kv.needed(640, 3) == kv.reserved(640, 3)
    assert kv.needed(641, 3) < kv.reserved(641, 3) == kv.reserved(704, 3)


def test_windows_that_bound_memory_bound_nothing_else() -> None:
    p = plan(CacheShape("any", (attention(1, 32, 100),), None), by_reserved=False)
    assert p.largest_context(1 << 20) == UNBOUNDED
    assert p.largest_context(1000) == 0
