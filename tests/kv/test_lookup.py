"""Look-ups: they change nothing, a hit stays valid for a while; and the largest prefixes."""

from __future__ import annotations

import gc

import pytest

from kvreuse.kv.cache import KVCache

from .cache_machine import CheckedCache, small_pool
from .test_cache import served


def test_looking_up_unseen_salts_changes_nothing() -> None:
    cache = KVCache(small_pool(4), b"namespace")
    roots = cache._index._roots
    for number in range(100):
        assert cache.lookup((1, 2, 3, 4, 5), f"salt {number}").tokens == 0
        cache.promises.check_pin((1, 2, 3, 4, 5), f"salt {number}")
    assert roots.all() == []
    for number in range(100):
        seq, _ = cache.open(cache.lookup((1, 2), f"salt {number}"))
        cache.close(seq, (1, 2))
    gc.collect()
    assert roots._next_node >= -4  # numbers of roots that are gone are used again


def test_a_hit_is_the_same_until_something_changes() -> None:
    checked = CheckedCache(10)
    ids = tuple(range(9))
    checked.close(served(checked, ids))
    cache = checked.cache
    hit = cache.lookup(ids)
    assert cache.lookup(ids, known=hit) is hit
    seq, _ = cache.open(hit)
    assert seq.written == 8
    assert cache.lookup(ids, known=hit) is not hit
    cache.close(seq, ids)


@pytest.mark.parametrize("evicted", range(5))
def test_an_old_hit_opens_what_is_left_of_it(evicted: int) -> None:
    """Pages evicted between a look-up and its opening, and taken by others, are left out."""
    cache = KVCache(small_pool(4), b"namespace")
    ids, other = tuple(range(16)), tuple(range(100, 116))
    for prompt in (ids,):
        seq, _ = cache.open(cache.lookup(prompt))
        assert cache.reserve(seq, 16)
        cache.commit(seq, prompt, 16)
        cache.close(seq, prompt)
    hit = cache.lookup((*ids, 16))
    assert hit.tokens == 16
    taken, _ = cache.open(cache.lookup(other))
    assert cache.reserve(taken, 4 * evicted)
    cache.commit(taken, other, 4 * evicted)
    seq, copies = cache.open(hit)
    assert seq.written == 16 - 4 * evicted
    assert not copies
    cache.check()
    cache.close(seq, ids)
    cache.close(taken, other)
    cache.check()
