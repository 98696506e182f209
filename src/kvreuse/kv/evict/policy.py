"""Eviction policies: each is a pure function of the data of candidates.

A candidate is a leaf that only the index owns. Under every policy, pages of ended sessions are
evicted first, then pages of lower priority; among pages of equal worth the deepest goes first
(:mod:`kvreuse.kv.evict.evictor`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.config import EVICTION_POLICIES

Float64Array = npt.NDArray[np.float64]


class Candidates(NamedTuple):
    """The inputs of a policy: float64[n] each for n pages, or floats for one page."""

    age: Any
    """The number of page uses since the page was last used."""
    hit_density: Any
    """Expected reuses per unit of age that the page stays, for the best length of stay."""
    cost: Any
    """Prefill time that a reuse saves, in units of that of a sequence's first page."""


Policy = Callable[[Candidates], Any]
"""From candidates to the worth of keeping each: float64[n]. The page of least worth is evicted."""


def lru(pages: Candidates) -> Any:
    """Least recently used first."""
    return -pages.age


def hit_density(pages: Candidates) -> Any:
    """Prefill time saved per unit of age that a page stays (as in Beckmann, Chen and Cidon,
    "LHD: improving cache hit rate by maximizing hit density", NSDI 2018)."""
    return pages.hit_density * pages.cost


POLICIES: dict[str, Policy] = dict(zip(EVICTION_POLICIES, (hit_density, lru), strict=True))
"""The policies by their names for ``--eviction-policy``."""
