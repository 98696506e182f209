"""Why a prefix was not reused: each reason, and the token where reuse ends."""

from __future__ import annotations

from kvreuse.api.miss import CACHED_TOKENS, Miss, Reason
from kvreuse.kv.cache import KVCache

from .cache_machine import small_pool

PROMPT = tuple(range(10))


def make_cache(num_pages: int = 12) -> KVCache:
    return KVCache(small_pool(num_pages), b"namespace")


def serve(cache: KVCache, ids: tuple[int, ...], salt: str | None = None) -> None:
    seq, _ = cache.open(cache.lookup(ids, salt))
    n = len(ids) - seq.written
    assert cache.reserve(seq, n)
    cache.commit(seq, ids, n)
    cache.close(seq, ids)


def test_nothing_to_explain() -> None:
    cache = make_cache()
    serve(cache, PROMPT)
    hit = cache.lookup(PROMPT)
    assert (hit.tokens, hit.miss, hit.reason) == (9, None, None)


def test_cold() -> None:
    cache = make_cache()
    assert cache.lookup(PROMPT).miss == Miss(Reason.COLD, 0)
    serve(cache, (90, 91))
    assert cache.lookup(PROMPT).miss == Miss(Reason.COLD, 0)
    serve(cache, PROMPT)
    assert cache.lookup((*PROMPT, 10, 11)).miss == Miss(Reason.COLD, 10)


def test_diverged_tells_what_the_cache_has_instead() -> None:
    cache = make_cache()
    ids = tuple(range(30))
    serve(cache, ids)
    miss = cache.lookup((*ids[:6], 77, *ids[7:])).miss
    assert miss == Miss(Reason.DIVERGED, 6, cached=ids[6 : 6 + CACHED_TOKENS])
    miss = cache.lookup((*ids[:28], 77, 78)).miss
    assert miss == Miss(Reason.DIVERGED, 28, cached=ids[28:])
    miss = cache.lookup((*ids[:8], 77, 78)).miss
    assert miss == Miss(Reason.DIVERGED, 8, cached=ids[8 : 8 + CACHED_TOKENS])


def test_evicted_until_it_is_back() -> None:
    cache = make_cache(num_pages=4)
    serve(cache, PROMPT)
    serve(cache, tuple(range(50, 63)))
    assert cache.lookup(PROMPT).miss == Miss(Reason.EVICTED, 0)
    serve(cache, PROMPT[:4])
    assert cache.lookup(PROMPT).miss == Miss(Reason.EVICTED, 4)
    assert cache.lookup((*PROMPT[:4], 77, 5, 6, 7)).miss == Miss(Reason.COLD, 4)
    serve(cache, PROMPT)
    assert cache.lookup(PROMPT).miss is None


def test_another_namespace() -> None:
    cache = make_cache()
    serve(cache, PROMPT, "one tenant")
    assert cache.lookup(PROMPT, "another").miss == Miss(Reason.NAMESPACE, 0, field="cache_salt")
    assert cache.lookup(PROMPT).miss == Miss(Reason.NAMESPACE, 0, field="cache_salt")
    assert cache.lookup(PROMPT, "one tenant").miss is None
    serve(cache, (50, 51, 52, 53), "another")
    again = (50, 51, 52, 53, *PROMPT)
    assert cache.lookup(again, "another").miss == Miss(Reason.COLD, 4)


def test_in_flight_page_by_page_and_until_the_leader_goes() -> None:
    cache = make_cache()
    seq, _ = cache.open(cache.lookup(PROMPT))
    assert cache.lookup(PROMPT).miss == Miss(Reason.IN_FLIGHT, 0)
    assert cache.lookup(PROMPT, "tenant").reason is Reason.COLD
    assert cache.reserve(seq, 10)
    cache.commit(seq, PROMPT, 5)
    assert cache.lookup(PROMPT).miss == Miss(Reason.IN_FLIGHT, 4)
    assert cache.lookup((*PROMPT[:7], 77, 78)).reason is Reason.COLD
    cache.commit(seq, PROMPT, 4)
    assert cache.lookup(PROMPT).miss == Miss(Reason.COLD, 8)
    cache.close(seq, PROMPT)
    assert cache.lookup((*PROMPT, 10, 11)).reason is Reason.COLD

    seq, _ = cache.open(cache.lookup((50, 51, 52, 53, 54)))
    assert cache.lookup((50, 51, 52, 53)).miss == Miss(Reason.IN_FLIGHT, 0)
    cache.close(seq, (50, 51, 52, 53, 54))
    assert cache.lookup((50, 51, 52, 53)).miss == Miss(Reason.COLD, 0)
