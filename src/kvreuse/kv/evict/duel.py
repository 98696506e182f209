"""Duel: a policy that learns is followed only while it does no worse than LRU.

As in set duelling (Qureshi et al., "Adaptive insertion policies for high performance caching",
ISCA 2007) a few decisions are always LRU's, a few always the policy's, and the rest follow the
winner. What is counted are regrets: pages that came back while they were still remembered, for
each page evicted.
"""

from __future__ import annotations

import math

FOLLOWER, POLICY, LRU = range(3)
"""Who decided on an eviction."""

_ROUND = 128
_MARGIN = 1.5
"""By how much the policy must be worse before LRU takes over."""
_CLUSTER = 16
"""Pages that come back together: so many regrets tell no more than one."""
_SIGMAS = 2
"""Standard deviations beyond which a difference is no chance."""
_DECAY = 0.95


class Duel:
    """Counts of both sides, and whom to follow."""

    def __init__(self) -> None:
        self._calls = 0
        self._evicted = [0.0, 0.0, 0.0]
        self._regrets = [0.0, 0.0, 0.0]
        self.lru_wins = False

    def next(self, n: int) -> int:
        """Who decides on the next ``n`` evictions."""
        turn = self._calls % _ROUND
        self._calls += 1
        by = POLICY if turn == 0 else LRU if turn == _ROUND // 2 else FOLLOWER
        self._evicted[by] += n
        return by

    def regret(self, by: int) -> None:
        """A page that ``by`` evicted came back."""
        self._regrets[by] += 1

    def renew(self) -> None:
        """Decide whom to follow, and let what was counted fade."""
        (_, policy, lru), (_, by_policy, by_lru) = self._regrets, self._evicted
        if min(by_policy, by_lru) > 0 and policy + lru > 0:
            more = policy / by_policy - _MARGIN * lru / by_lru
            spread = math.sqrt(policy / by_policy**2 + lru * (_MARGIN / by_lru) ** 2)
            self.lru_wins = more > _SIGMAS * math.sqrt(_CLUSTER) * spread
        self._regrets = [count * _DECAY for count in self._regrets]
        self._evicted = [count * _DECAY for count in self._evicted]
