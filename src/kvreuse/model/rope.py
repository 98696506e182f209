"""Tables of the rotary position embedding."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvreuse.shape import RopeSpec

Table = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def rope_tables(rope: RopeSpec, positions: int) -> tuple[Table, Table]:
    """Cosines and sines, float32[positions, dims / 2], computed in float64 (Su et al., 2021).

    Pair i turns by ``frequencies(rope)[i]`` at each position. A position's row does not depend on
    how many positions there are. YaRN multiplies both tables by its ``attn_factor``, and so every
    product of a query and a key by the square of it.
    """
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies(rope)
    cosines, sines = np.cos(angles), np.sin(angles)
    if rope.scaling == "yarn":
        cosines, sines = cosines * rope.param("attn_factor"), sines * rope.param("attn_factor")
    return cosines.astype(np.float32), sines.astype(np.float32)


def frequencies(rope: RopeSpec) -> Doubles:
    """Radians that each pair turns from one position to the next, float64[dims / 2].

    Without scaling, ``base ** (-2 i / dims)``. ``llama3`` and ``yarn`` divide the speed of slow
    pairs, those that turn only a few times within the trained context, by ``factor``, so that a
    longer context turns them no further; fast pairs keep their speed. The two differ in which
    pairs are slow.
    """
    trained = rope.base ** (-np.arange(rope.dims // 2, dtype=np.float64) * 2 / rope.dims)
    if rope.scaling == "none":
        return trained
    if rope.scaling == "factors":
        return trained / np.array(rope.factors, np.float64)
    if rope.scaling == "linear":
        return trained / rope.param("factor")
    kept = _kept_by_llama3(rope, trained) if rope.scaling == "llama3" else _kept_by_yarn(rope)
    return trained / rope.param("factor") * (1 - kept) + trained * kept


def _kept_by_llama3(rope: RopeSpec, trained: Doubles) -> Doubles:
    """The share of its speed that each pair keeps, by its turns within the trained context.

    0 up to ``low_freq_factor`` turns, 1 from ``high_freq_factor`` turns on, linear in between
    (Llama 3.1: Grattafiori et al., 2024, in the form of the model's published code).
    """
    turns = rope.param("original_context") * trained / (2 * math.pi)
    low, high = rope.param("low_freq_factor"), rope.param("high_freq_factor")
    return np.clip((turns - low) / (high - low), 0, 1)


def _kept_by_yarn(rope: RopeSpec) -> Doubles:
    """The same for YaRN (Peng et al., 2023, in the form of its published code).

    1 up to the pair that turns ``beta_fast`` times within the trained context (its number rounded
    down), 0 from the pair that turns ``beta_slow`` times on (rounded up), linear in the number of
    the pair in between.
    """

    def pair_that_turns(times: float) -> float:
        context = rope.param("original_context")
        return rope.dims * math.log(context / (times * 2 * math.pi)) / (2 * math.log(rope.base))

    first = max(math.floor(pair_that_turns(rope.param("beta_fast"))), 0)
    last = min(math.ceil(pair_that_turns(rope.param("beta_slow"))), rope.dims - 1)
    pairs = np.arange(rope.dims // 2, dtype=np.float64)
    return 1 - np.clip((pairs - first) / max(last - first, 0.001), 0, 1)
