"""Duel: uses the learning policy only while it does no worse than LRU.

As in set duelling (Qureshi et al., "Adaptive insertion policies for high performance caching",
ISCA 2007) a few evictions always use LRU, a few always the policy, and the rest use the winner. The
measure is regrets for each page evicted: evicted pages that came back while they were in Ghosts.
"""

from __future__ import annotations

import math

FOLLOWER, POLICY, LRU = range(3)
"""The side that decided an eviction: the winner of the time, always the policy, or always LRU."""

_ROUND = 128
_MARGIN = 1.5
"""LRU wins only if the policy's rate of regrets is higher by this factor."""
_CLUSTER = 16
"""Pages that come back together: so many regrets are one independent observation."""
_SIGMAS = 2
"""A difference of more standard deviations than this is significant."""
_DECAY = 0.95


class Duel:
    """Counts of evictions and regrets of each side, and the winner."""

    def __init__(self) -> None:
        self._calls = 0
        self._evicted = [0.0, 0.0, 0.0]
        self._regrets = [0.0, 0.0, 0.0]
        self.lru_wins = False

    def next(self, n: int) -> int:
        """The side that decides the next ``n`` evictions."""
        turn = self._calls % _ROUND
        self._calls += 1
        by = POLICY if turn == 0 else LRU if turn == _ROUND // 2 else FOLLOWER
        self._evicted[by] += n
        return by

    def regret(self, by: int) -> None:
        """Count a page that the side ``by`` evicted and that came back."""
        self._regrets[by] += 1

    def renew(self) -> None:
        """Choose the winner, and decay the counts."""
        (_, policy, lru), (_, by_policy, by_lru) = self._regrets, self._evicted
        if min(by_policy, by_lru) > 0 and policy + lru > 0:
            more = policy / by_policy - _MARGIN * lru / by_lru
            spread = math.sqrt(policy / by_policy**2 + lru * (_MARGIN / by_lru) ** 2)
            self.lru_wins = more > _SIGMAS * math.sqrt(_CLUSTER) * spread
        self._regrets = [count * _DECAY for count in self._regrets]
        self._evicted = [count * _DECAY for count in self._evicted]
