"""Tokens that a cache of a given size reuses of a trace: by an eviction policy, and at most.

:func:`replay` sends the trace through the engine's own cache: the same index, the same policies. A
block of the trace is a page of the cache; keys and values are not computed.

:func:`min_hits` is Belady's MIN ("A study of replacement algorithms", 1966), the most that any
policy could reuse that knew what comes. Of the blocks at hand, those of the request just served
among them, it keeps those that are needed again first; a block need not be kept at all. A block is
needed again no later than those that continue it, and of blocks needed at the same time the deepest
goes first: so what is kept is always whole prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.errors import ConfigError
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.study.simulate.trace import Trace

_LAYOUT = KVLayout.uniform(1, 1, 16)  # never touched: any will do
_LAST = -1  # a token that no block holds


def replay(
    trace: Trace,
    capacity: int,
    policy: str,
    *,
    ends: Sequence[bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Tokens that a cache of ``capacity`` pages reuses, requests coming one after the other.

    ``ends`` tells which requests end their session. A prompt of more blocks than there are pages
    is kept as far as it fits. ConfigError for a capacity or a policy that there is none of.
    """
    if capacity < 1:
        raise ConfigError(f"a cache needs at least one block, got {capacity}")
    cache = KVCache(PagePool(_LAYOUT, capacity), b"", eviction_policy=policy)
    size, hits = cache.page_size, 0
    for number, request in enumerate(trace.requests):
        blocks = request.blocks[:capacity]
        ids = np.full(len(blocks) * size + 1, _LAST, dtype=np.int32)
        ids[:-1] = np.repeat(np.array(blocks, dtype=np.int32), size)
        kv, _ = cache.open(cache.lookup(ids))
        hits += int(trace.tokens(request)[kv.written // size])
        missing = len(ids) - 1 - kv.written
        if not cache.reserve(kv, missing):
            raise AssertionError("the only request found no free page")
        cache.commit(kv, ids, missing)
        ended = ends is not None and ends[number]
        cache.close(kv, ids, Retention(session_end=True) if ended else DEFAULT_RETENTION)
        if progress is not None:
            progress(number + 1, len(trace.requests))
    return hits


def min_hits(
    trace: Trace, capacity: int, progress: Callable[[int, int], None] | None = None
) -> int:
    """Tokens that MIN reuses with room for ``capacity`` blocks."""
    needed_at = _next_uses(trace)
    kept: dict[int, int] = {}  # by block: the request that needs it next
    heap: list[tuple[int, int, int]] = []  # (minus that request, minus depth, block)
    hits = 0
    for number, request in enumerate(trace.requests):
        found = 0
        while found < len(request.blocks) and request.blocks[found] in kept:
            found += 1
        hits += int(trace.tokens(request)[found])
        for depth, (block, when) in enumerate(zip(request.blocks, needed_at[number], strict=True)):
            if when == len(trace.requests):
                kept.pop(block, None)
            else:
                kept[block] = when
                heapq.heappush(heap, (-when, -depth, block))
        while len(kept) > capacity:
            when, _, block = heapq.heappop(heap)
            if kept.get(block) == -when:
                del kept[block]
        if progress is not None:
            progress(number + 1, len(trace.requests))
    return hits


def _next_uses(trace: Trace) -> list[list[int]]:
    """For each block of each request the next request with it; their number if there is none."""
    never = len(trace.requests)
    seen: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(never - 1, -1, -1):
        blocks = trace.requests[number].blocks
        uses.append([seen.get(block, never) for block in blocks])
        seen.update(dict.fromkeys(blocks, number))
    return uses[::-1]
