"""How long pages stay: pins and their quota, ttl, priority, the end of a session."""

from __future__ import annotations

from typing import Any

import pytest

from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.errors import RequestError
from kvreuse.kv.cache import KVCache
from kvreuse.kv.pool import PageError

from .cache_machine import small_pool
from .cache_oracle import PAGE

Ids = tuple[int, ...]


@pytest.fixture(params=["lru", "hit-density"])
def cache(request: pytest.FixtureRequest) -> KVCache:
    return KVCache(small_pool(12), b"namespace", eviction_policy=request.param)


def prompt(first: int, length: int = 9) -> Ids:
    return tuple(range(first, first + length))


def serve(cache: KVCache, ids: Ids, retention: Retention = DEFAULT_RETENTION) -> None:
    seq, _ = cache.open(cache.lookup(ids))
    n = len(ids) - seq.written
    assert cache.reserve(seq, n)
    cache.commit(seq, ids, n)
    cache.close(seq, ids, retention, len(ids))
    cache.check()


def evict(cache: KVCache, pages: int) -> None:
    """Make others take ``pages`` pages more than are free."""
    seq, _ = cache.open(cache.lookup((7777,)))
    assert cache.reserve(seq, (cache.pool.num_free + pages) * PAGE)
    cache.close(seq, (7777,))
    cache.check()


def cached(cache: KVCache, ids: Ids) -> int:
    return cache.lookup(ids).tokens


def test_the_end_of_a_session_frees_its_own_pages_first(cache: KVCache) -> None:
    serve(cache, prompt(100))
    serve(cache, (*prompt(100, 4), *prompt(200, 5)), Retention(session_end=True))
    serve(cache, prompt(300))
    evict(cache, 2)
    assert cached(cache, prompt(100)) == 8  # the older one, and what both share
    assert cached(cache, (*prompt(100, 4), *prompt(200, 5))) == 4
    assert cached(cache, prompt(300)) == 8


def test_a_session_that_goes_on_after_all_has_not_ended(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(session_end=True))
    serve(cache, prompt(300))
    serve(cache, prompt(100))
    evict(cache, 3)
    assert cached(cache, prompt(300)) < 8
    assert cached(cache, prompt(100)) == 8


def test_what_somebody_else_is_using_has_not_ended(cache: KVCache) -> None:
    serve(cache, prompt(100))
    other, _ = cache.open(cache.lookup((*prompt(100, 8), 1, 2)))
    serve(cache, prompt(100), Retention(session_end=True))
    cache.close(other, (*prompt(100, 8), 1, 2))
    cache.check()
    serve(cache, prompt(300))
    evict(cache, 3)
    assert cached(cache, prompt(300)) == 8 or cached(cache, prompt(100)) == 8


def test_priority_outlasts_whatever_the_age(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(priority=-1))
    serve(cache, prompt(200), Retention(priority=5))
    for first in (300, 400, 500):
        serve(cache, prompt(first))
    assert cached(cache, prompt(200)) < 8
    for first in range(600, 1600, 100):
        serve(cache, prompt(first))
    assert cached(cache, prompt(100)) == 8


def test_pinned_pages_stay_and_the_last_token_is_not_pinned(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(pin=True))
    assert cache.num_pinned == 2
    serve(cache, prompt(100), Retention(pin=True))  # pinned again: no more pages
    assert cache.num_pinned == 2
    evict(cache, cache.num_evictable)
    assert cached(cache, prompt(100)) == 8
    assert cache.num_available == 10
    serve(cache, prompt(100), Retention(session_end=True))
    assert cache.num_pinned == 0
    assert cache.num_available == 12
    evict(cache, cache.num_evictable)
    assert cached(cache, prompt(100)) == 0


def test_a_session_that_ends_does_not_unpin_a_longer_prompt(cache: KVCache) -> None:
    serve(cache, prompt(100, 17), Retention(pin=True))
    serve(cache, prompt(100, 9), Retention(session_end=True))
    assert cache.num_pinned == 4
    serve(cache, (*prompt(100, 12), 1, 2), Retention(pin=True))
    evict(cache, cache.num_evictable)
    serve(cache, prompt(100, 17), Retention(session_end=True))
    assert cache.num_pinned == 0
    evict(cache, cache.num_evictable)
    assert cache.pool.num_free == 12


def test_pins_that_are_given_up_go_from_the_last_page_on(cache: KVCache) -> None:
    assert not cache.promises.give_up(1)
    serve(cache, prompt(100, 17), Retention(pin=True))
    assert cache.promises.give_up(1)
    cache.check()
    evict(cache, cache.num_evictable)
    assert cached(cache, prompt(100, 17)) == 12
    assert cache.promises.give_up(99)
    evict(cache, cache.num_evictable)
    assert cache.pool.num_free == 12


def test_only_the_prompt_is_pinned(cache: KVCache) -> None:
    seq, _ = cache.open(cache.lookup(prompt(100)))
    assert cache.reserve(seq, 20)
    cache.commit(seq, prompt(100, 20), 20)
    cache.close(seq, prompt(100, 20), Retention(pin=True), 9)
    assert cache.num_pinned == 2
    cache.check()


def test_a_pin_of_a_prompt_that_was_not_finished_is_of_its_full_pages(cache: KVCache) -> None:
    """Else its unfilled page, which a longer one replaces, could never be unpinned."""
    ids = prompt(100, 16)
    seq, _ = cache.open(cache.lookup(ids))
    assert cache.reserve(seq, 6)
    cache.commit(seq, ids, 6)
    cache.close(seq, ids, Retention(pin=True), len(ids))
    assert cache.num_pinned == 1
    serve(cache, ids)
    serve(cache, ids, Retention(session_end=True))
    assert cache.num_pinned == 0
    evict(cache, cache.num_evictable)
    assert cache.pool.num_free == 12


def test_a_low_priority_is_low_also_after_a_session_has_ended(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(session_end=True))
    serve(cache, prompt(100), Retention(priority=5))
    serve(cache, prompt(200), Retention(priority=1))
    evict(cache, 3)
    assert cached(cache, prompt(200)) == 8
    assert cached(cache, prompt(100)) < 8


def test_the_quota_of_pins(cache: KVCache) -> None:
    serve(cache, prompt(100, 16), Retention(pin=True))
    cache.promises.check_pin(prompt(200), None)
    cache.promises.check_pin(prompt(100, 24), None)  # four of its six are pinned
    assert (
        len(cache.promises.check_pin(prompt(100, 16), None, {1, 2})) == 4
    )  # all are pinned, none is taken
    with pytest.raises(
        RequestError,
        match=r"takes 3 pages of 4 tokens, but of the 6 that can be pinned "
        r"\(half of the KV cache's 12\) 4 are taken",
    ):
        cache.promises.check_pin(prompt(200, 12), None)
    with pytest.raises(RequestError, match="5 are taken"):
        cache.promises.check_pin(prompt(200), None, {1})
    cache.promises.check_pin(prompt(200), None, cache.promises.check_pin(prompt(200), None))


@pytest.mark.parametrize("pin", [False, True])
def test_after_its_ttl_a_prompt_goes_first(
    cache: KVCache, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    serve(cache, prompt(100), Retention(pin=pin, ttl=30))
    serve(cache, prompt(100), Retention(pin=pin, ttl=60))
    serve(cache, prompt(200))
    cache.promises.expire(1059.0)
    cache.check()
    assert cache.num_pinned == 2 * pin
    cache.promises.expire(1061.0)
    cache.check()
    assert cache.num_pinned == 0
    evict(cache, 3)
    assert cached(cache, prompt(100)) == 0
    assert cached(cache, prompt(200)) == 8


def test_the_longest_pin_counts(cache: KVCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    serve(cache, prompt(100), Retention(pin=True, ttl=60))
    serve(cache, prompt(100), Retention(pin=True, ttl=30))
    serve(cache, prompt(200), Retention(pin=True))
    cache.promises.expire(1059.0)
    assert cache.num_pinned == 4
    cache.promises.expire(1061.0)
    assert cache.num_pinned == 2
    serve(cache, prompt(300))
    evict(cache, 3)
    assert cached(cache, prompt(100)) == 0
    assert cached(cache, prompt(300)) == 8


def test_what_was_used_since_does_not_go_at_the_end_of_the_ttl(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(ttl=1))
    serve(cache, prompt(200))
    serve(cache, prompt(100))
    cache.promises.expire(1e12)
    evict(cache, 3)
    assert cached(cache, prompt(100)) == 8


def test_a_ttl_of_pages_that_are_gone(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(ttl=1))
    evict(cache, cache.num_evictable)
    cache.promises.expire(1e12)
    serve(cache, prompt(200))
    cache.promises.expire(1e13)
    cache.check()


def test_check_sees_a_pin_that_nobody_counted(cache: KVCache) -> None:
    serve(cache, prompt(100), Retention(pin=True))
    cache.promises.pinned.popitem()
    with pytest.raises(PageError, match="has a count of 2 and 1 owners"):
        cache.check()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pin", 1, "pin must be true or false, got 1"),
        ("session_end", "yes", "session_end must be true or false, got 'yes'"),
        ("priority", 1.5, "priority must be an integer, got 1.5"),
        ("priority", True, "priority must be an integer, got True"),
        ("ttl", 0, "ttl must be a number of seconds above 0 and at most 1000000000, got 0"),
        (
            "ttl",
            float("nan"),
            "ttl must be a number of seconds above 0 and at most 1000000000, got nan",
        ),
        ("ttl", 10**400, "ttl must be a number of seconds above 0"),
        ("ttl", "60", "ttl must be a number of seconds above 0 and at most 1000000000, got '60'"),
    ],
)
def test_values_out_of_range(field: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Retention(**{field: value})
