"""The census: which prefixes are listed, with what figures, and at what cost."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvreuse.kv.cache import KVCache
from kvreuse.kv.census import SHOWN_TOKENS
from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import PrefixIndex

from .cache_machine import small_pool
from .cache_oracle import PAGE


def serve(cache: KVCache, ids: tuple[int, ...], salt: str | None = None) -> None:
    """A sequence of these tokens comes and goes."""
    seq, _ = cache.open(cache.lookup(ids, salt))
    assert cache.reserve(seq, len(ids) - seq.written)
    cache.commit(seq, ids, len(ids) - seq.written)
    cache.close(seq, ids)


def walked(index: PrefixIndex, first: int) -> int:
    """The last page that all prompts from ``first`` on share, page by page."""
    last = first
    while len(index.children(last)) == 1:
        last = index.first_child(last)
    return last


def test_the_largest_prefixes_are_those_that_a_walk_finds() -> None:
    cache = KVCache(small_pool(60), b"namespace")
    for number in range(12):
        ids = (number % 3, *range(number), 7, number)
        serve(cache, ids, "tenant" if number % 4 == 3 else None)
    index = cache._index
    found = cache.prefixes(100)
    assert [one.pages for one in found] == sorted((one.pages for one in found), reverse=True)
    assert sum(one.pages for one in found) == index.num_nodes
    leaves = sum(index.is_leaf(page) for page in range(60) if page in index)
    assert sum(one.continuations for one in found) == leaves
    assert cache.prefixes(2) == found[:2]
    cache.clear()
    assert cache.prefixes(100) == []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shared_is_what_a_walk_finds(seed: int) -> None:
    draw = random.Random(seed)
    cache = KVCache(small_pool(40), b"namespace")
    for _ in range(60):  # more than there is room for: pages are evicted and used again
        ids = tuple(draw.choices((0, 1), k=draw.randint(1, 9), weights=(9, 1)))
        serve(cache, ids, draw.choice((None, "tenant")))
        index = cache._index
        firsts = index.sizes.largest(40)
        found = cache.prefixes(40)
        assert len(found) == len(firsts)
        for first, prefix in zip(firsts, found, strict=True):
            last = walked(index, first)
            assert prefix.key == (index.key(last) if index.is_full(last) else b"")
            assert prefix.num_tokens == index.depths[last] * PAGE + index.length(last)
            assert len(prefix.tokens) == min(prefix.num_tokens, SHOWN_TOKENS) * TOKEN_BYTES


def test_a_long_prefix_costs_no_more_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(small_pool(4000), b"namespace")
    ids = tuple(range(3000 * PAGE))
    serve(cache, (*ids, 1))
    serve(cache, (*ids, 2))
    visits = 0
    for name in ("tokens", "first_child", "only_child", "is_leaf", "children", "key"):
        plain = getattr(PrefixIndex, name)

        def count(self: PrefixIndex, page: int, plain: object = plain) -> object:
            nonlocal visits
            visits += 1
            return plain(self, page)  # type: ignore[operator]

        monkeypatch.setattr(PrefixIndex, name, count)
    [prefix] = cache.prefixes(50)
    assert visits <= 2 * SHOWN_TOKENS // PAGE + 4
    assert prefix.num_tokens == 3000 * PAGE
    assert np.frombuffer(prefix.tokens, "<i4").tolist() == list(ids[:SHOWN_TOKENS])
