"""Belady's MIN: the most tokens that any policy could reuse, knowing what comes.

Of the blocks at hand, those of the request just served among them, the ones that are needed first
again are kept (Belady, "A study of replacement algorithms", 1966; a block need not be taken at
all). A block is needed again no later than those that continue it, and of blocks needed at the
same time the deepest goes first: so what is kept is always whole prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kvreuse.study.simulate.trace import Trace


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
