"""MemoryPlan and its inverse: what fits does, one more does not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.ops.native import NativeBackend
from kvreuse.plan.buffers import StepShape
from kvreuse.plan.geometry import Geometry, Layer, attention
from kvreuse.plan.memory import UNBOUNDED, KVPlan, MemoryPlan
from kvreuse.plan.rows import CODECS
from kvreuse.shape import ModelShape, RopeSpec

BACKEND = NativeBackend(threads=2)
SHAPE = ModelShape(
    architecture="any",
    num_layers=1,
    hidden_size=64,
    intermediate_size=128,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=500,
    context_length=5000,
    rms_norm_eps=1e-5,
    rope=RopeSpec("half", 1e4, 32),
)

layers = st.builds(
    Layer,
    kv_heads=st.integers(0, 4),
    key_dim=st.sampled_from([32, 64]),
    value_dim=st.sampled_from([32, 48]),
    latent_dim=st.sampled_from([0, 0, 96]),
    window=st.one_of(st.none(), st.integers(1, 200)),
    conv=st.integers(0, 50),
    state=st.integers(0, 50),
)
geometries = st.builds(
    Geometry,
    st.just("any"),
    st.lists(layers, min_size=1, max_size=5).map(tuple),
    st.one_of(st.none(), st.integers(1, 5000)),
)


def plan(geometry: Geometry, *, by_reserved: bool, codec: str = "bf16") -> MemoryPlan:
    shape = SHAPE if by_reserved else None
    return MemoryPlan(KVPlan(geometry, codec), 1000, shape, by_reserved, StepShape(BACKEND))


@settings(max_examples=200, deadline=None)
@given(
    geometry=geometries,
    by_reserved=st.booleans(),
    codec=st.sampled_from(list(CODECS)),
    budget=st.integers(0, 1 << 30),
    tokens=st.integers(1, 3000),
    parallel=st.integers(1, 50),
    shared=st.integers(0, 300),
)
def test_the_inverse_is_exact(
    geometry: Geometry,
    by_reserved: bool,
    codec: str,
    budget: int,
    tokens: int,
    parallel: int,
    shared: int,
) -> None:
    p = plan(geometry, by_reserved=by_reserved, codec=codec)
    context = p.largest_context(budget, parallel, shared)
    limit = geometry.context_length or UNBOUNDED
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


def tokens_kept(layer: Layer, tokens: int, parallel: int, shared: int) -> int:
    """Count them one by one: a token of the prefix once, a token of a sequence's own each."""
    first = 0 if layer.window is None else max(0, tokens - layer.window)
    kept = {
        (None if position < shared else sequence, position)
        for sequence in range(parallel)
        for position in range(first, tokens)
    }
    return len(kept)


@settings(max_examples=50, deadline=None)
@given(geometry=geometries, tokens=st.integers(1, 250), parallel=st.integers(1, 4), data=st.data())
def test_bytes_are_those_of_the_tokens_kept(
    geometry: Geometry, tokens: int, parallel: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, tokens))
    kv = KVPlan(geometry)
    rows = sum(
        tokens_kept(layer, tokens, parallel, shared)
        * (2 * layer.kv_heads * (layer.key_dim + layer.value_dim) + 2 * layer.latent_dim)
        for layer in geometry.layers
    )
    states = sum(2 * layer.conv + 4 * layer.state for layer in geometry.layers)
    assert kv.needed(tokens, parallel, shared) == rows + parallel * states
    pages = {
        (None if (page + 1) * 32 <= shared else sequence, page)
        for sequence in range(parallel)
        for page in range(-(-tokens // 32))
    }
    assert kv.pages(tokens, parallel, shared) == len(pages)
    assert kv.reserved(tokens, parallel, shared) == len(pages) * kv.page_bytes + parallel * states


def test_without_windows_whole_pages_need_what_is_reserved() -> None:
    kv = KVPlan(Geometry("any", (attention(2, 64), attention(4, 32)), None), "int4", 64)
    assert kv.needed(640, 3) == kv.reserved(640, 3)
    assert kv.needed(641, 3) < kv.reserved(641, 3) == kv.reserved(704, 3)


def test_windows_that_bound_memory_bound_nothing_else() -> None:
    p = plan(Geometry("any", (attention(1, 32, 100),), None), by_reserved=False)
    assert p.largest_context(1 << 20) == UNBOUNDED
    assert p.largest_context(1000) == 0
