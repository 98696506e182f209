"""What finding and keeping pages costs, without a model.

    python bench/index.py [--tokens 8000] [--repeats 30]

Times are medians of processor time; pages are evicted one by one, as decoding does. Memory is all
that Python allocates for each page of the pool: tokens, keys, the tree, what is known of the use of
a page, and what is remembered of pages that were evicted.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.kv.sequence import SeqKV

LAYOUT = KVLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=16)
VOCAB = 49152
CHUNK = 512
SIBLINGS = (1_000, 60_000)
NODES = (10_000, 1_000_000)
EVICTED = 2_000
PROMPT = 250  # pages

Ids = npt.NDArray[np.int32]


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for name, microseconds in _times(rng, args.tokens, args.repeats):
        print(f"{name:52} {microseconds:9,.1f} us")
    for siblings in SIBLINGS:
        look_up, evict = _among_siblings(rng, siblings)
        print(f"look-up among {siblings:9,} prompts that part at one page {look_up:11,.1f} us")
        print(f"eviction of one of them {evict:39,.1f} us")
    for nodes in NODES:
        print(f"eviction of a page, {nodes:9,} nodes {_among_nodes(rng, nodes):27,.1f} us")
    print(f"memory of a page: {_memory(rng):.0f} bytes")


def _times(rng: np.random.Generator, tokens: int, repeats: int) -> list[tuple[str, float]]:
    """(what, median microseconds) of the life of a prompt."""
    cache = KVCache(PagePool(LAYOUT, 4 * LAYOUT.pages_for(tokens)), b"bench")
    ids = _random_ids(rng, tokens)
    parted = ids.copy()
    parted[tokens * 7 // 8] += 1

    def cold() -> None:
        ids[0] += 1
        _serve(cache, ids)

    def warm() -> None:
        cache.lookup(ids)
        _serve(cache, ids)

    figures = [(f"cold, {tokens:,} tokens: all bookkeeping", _median(cold, repeats))]
    figures += [(f"warm, {tokens:,} tokens: look-up and all bookkeeping", _median(warm, repeats))]
    parted[0] = ids[0]
    figures += [("look-up that finds all", _median(lambda: cache.lookup(ids), repeats))]
    figures += [("look-up that parts at 7/8", _median(lambda: cache.lookup(parted), repeats))]
    fresh = _random_ids(rng, tokens)
    figures += [("look-up that finds nothing", _median(lambda: cache.lookup(fresh), repeats))]
    seq = _opened(cache, ids)
    grown = np.concatenate([ids, fresh])

    def decode() -> None:
        for _ in range(32):
            cache.reserve(seq, 1)
            cache.commit(seq, grown, 1)

    return [*figures, ("one decoded token", _median(decode, repeats) / 32)]


def _among_siblings(rng: np.random.Generator, siblings: int) -> tuple[float, float]:
    """Microseconds of a look-up, and of an eviction, where many prompts share two pages."""
    cache = KVCache(PagePool(LAYOUT, siblings + 2), b"bench")
    page = LAYOUT.page_size
    system = _random_ids(rng, 2 * page)
    for _ in range(siblings):
        _serve(cache, np.concatenate([system, _random_ids(rng, page)]))
    ids = np.concatenate([system, _random_ids(rng, page)])
    look_up = _median(lambda: cache.lookup(ids), 100)
    return look_up, _evictions(cache, ids)


def _among_nodes(rng: np.random.Generator, nodes: int) -> float:
    """Microseconds of an eviction from so many pages of prompts with nothing in common."""
    cache = KVCache(PagePool(LAYOUT, nodes), b"bench")
    for _ in range(nodes // PROMPT):
        _serve(cache, _random_ids(rng, PROMPT * LAYOUT.page_size))
    return _evictions(cache, _random_ids(rng, 1))


def _evictions(cache: KVCache, ids: Ids) -> float:
    """Microseconds of an eviction; the cache is full."""
    seq, _ = cache.open(cache.lookup(ids))
    pages = min(EVICTED, cache.num_evictable // 2)
    start = time.process_time()
    for _ in range(pages):
        cache.reserve(seq, seq.reserved - seq.written + 1)
    return (time.process_time() - start) / pages * 1e6


def _memory(rng: np.random.Generator) -> float:
    """Bytes for each page of a pool, once the index and all that it remembers are full."""
    pages = 20_000
    pool = PagePool(LAYOUT, pages)
    tracemalloc.start()
    cache = KVCache(pool, b"bench")
    for _ in range(6 * pages // PROMPT):
        _serve(cache, _random_ids(rng, PROMPT * LAYOUT.page_size))
    taken = tracemalloc.get_traced_memory()[0] / pages
    tracemalloc.stop()
    return taken


def _serve(cache: KVCache, ids: Ids) -> None:
    cache.close(_opened(cache, ids), ids)


def _opened(cache: KVCache, ids: Ids) -> SeqKV:
    """A sequence that has committed all of ``ids``."""
    seq, _ = cache.open(cache.lookup(ids))
    while seq.written < len(ids):
        rows = min(CHUNK, len(ids) - seq.written)
        if not cache.reserve(seq, rows):
            raise RuntimeError("the pool is too small for this")
        cache.commit(seq, ids, rows)
    return seq


def _random_ids(rng: np.random.Generator, n: int) -> Ids:
    return rng.integers(0, VOCAB, n, dtype=np.int32)


def _median(call: Callable[[], object], repeats: int) -> float:
    """Median time of ``call`` in microseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
