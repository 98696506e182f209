"""Eviction policies: each is one pure function over what is known of the candidates.

A candidate is a leaf that nobody uses. Whatever the policy, pages of ended sessions go before
others, pages of a lower priority before those of a higher one, and among equals the deepest first
(:mod:`kvreuse.kv.evict.resting`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.config import EVICTION_POLICIES

Float64Array = npt.NDArray[np.float64]


class Candidates(NamedTuple):
    """What a policy sees of pages: float64[n] each for n of them, numbers for one."""

    age: Any
    """Pages used since the page was."""
    hit_density: Any
    """Reuses to be expected of such a page for each page-time that it stays, at best."""
    cost: Any
    """Seconds of prefill that a reuse saves for each byte, in units of those of a first page."""


Policy = Callable[[Candidates], Any]
"""What keeping each page is worth. The least is evicted."""


def lru(pages: Candidates) -> Any:
    """Least recently used first."""
    return -pages.age


def hit_density(pages: Candidates) -> Any:
    """Seconds saved for each byte and moment that a page stays (as in Beckmann, Chen and Cidon,
    "LHD: improving cache hit rate by maximizing hit density", NSDI 2018)."""
    return pages.hit_density * pages.cost


POLICIES: dict[str, Policy] = dict(zip(EVICTION_POLICIES, (hit_density, lru), strict=True))
"""By the names that ``--eviction-policy`` knows."""
