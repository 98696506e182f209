"""Replay of a trace through the cache of the engine: the same index, the same policies.

A block of the trace is a page of the cache, whatever it holds; keys and values are not computed.
"""

from __future__ import annotations

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
            raise AssertionError("nobody else uses a page: there is always room")
        cache.commit(kv, ids, missing)
        ended = ends is not None and ends[number]
        cache.close(kv, ids, Retention(session_end=True) if ended else DEFAULT_RETENTION)
        if progress is not None:
            progress(number + 1, len(trace.requests))
    return hits
