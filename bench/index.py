"""What finding and keeping pages costs, without a model.

    python bench/index.py [--tokens 8000] [--repeats 30]

Times are medians, memory is what Python allocates for a page of the index: once for a page that is
resident, and once more for the keys of pages that were evicted.
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

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=16)
VOCAB = 49152
CHUNK = 512
SIBLINGS = (100, 1_000, 10_000, 60_000)

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
        print(f"look-up among {siblings:6,} prompts that part at one page {look_up:14,.1f} us")
        print(f"eviction of one of them {evict:39,.1f} us")
    resident, evicted = _memory(rng)
    print(f"memory of a page: {resident:.0f} bytes, and {evicted:.0f} for evicted keys")


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
    system = _random_ids(rng, 2 * LAYOUT.page_size)

    def prompt() -> Ids:
        return np.concatenate([system, _random_ids(rng, LAYOUT.page_size)])

    for _ in range(siblings):
        _serve(cache, prompt())
    ids = prompt()
    look_up = _median(lambda: cache.lookup(ids), 100)
    seq, _ = cache.open(ids)
    start = time.perf_counter()
    cache.reserve(seq, 64 * LAYOUT.page_size)
    return look_up, (time.perf_counter() - start) / 64 * 1e6


def _memory(rng: np.random.Generator) -> tuple[float, float]:
    """Bytes for each page of the pool: of the full index, and of all keys it remembers."""
    pages = 5000
    cache = KVCache(PagePool(LAYOUT, pages), b"bench")
    taken = []
    tracemalloc.start()
    for rounds in (1, 5):
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds * pages // 250):
            _serve(cache, _random_ids(rng, 250 * LAYOUT.page_size))
        taken.append((tracemalloc.get_traced_memory()[0] - before) / pages)
    tracemalloc.stop()
    return taken[0], taken[1]


def _serve(cache: KVCache, ids: Ids) -> None:
    cache.close(_opened(cache, ids), ids)


def _opened(cache: KVCache, ids: Ids) -> SeqKV:
    """A sequence that has committed all of ``ids``."""
    seq, _ = cache.open(ids)
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
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
