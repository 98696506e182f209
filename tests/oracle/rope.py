"""Rotary embedding in float64, with the ways in which it is stretched to longer texts."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """Pair i of ``dims`` channels turns by ``base ** (-2 i / dims) / divisors[i]`` a position.

    A pair is two neighbours, or with ``halves`` channels i and i + dims / 2. ``magnitude``
    stretches what is turned. (Su et al., 2021.)
    """

    base: float
    dims: int
    halves: bool
    divisors: tuple[float, ...]
    magnitude: float

    def turn(self, x: Float32) -> Float32:
        """Heads ``[T, heads, head_dim]`` of positions 0 to T - 1; channels past ``dims`` pass."""
        i = np.arange(self.dims // 2)
        angles = np.arange(len(x))[:, None] * self.base ** (-2.0 * i / self.dims)
        turns = self.magnitude * np.exp(1j * angles / np.array(self.divisors))
        first, second = (i, i + self.dims // 2) if self.halves else (2 * i, 2 * i + 1)
        turned = (x[:, :, first] + 1j * x[:, :, second].astype(np.float64)) * turns[:, None]
        out = x.copy()
        out[:, :, first], out[:, :, second] = turned.real, turned.imag
        return out


def divisors(
    regime: str,
    base: float,
    dims: int,
    *,
    factor: float,
    context: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float = 1.0,
) -> tuple[Float64, float]:
    """By how much each pair turns more slowly ``[dims / 2]``, and the magnitude.

    ``context`` is the length that the model was first trained on. Raises NotImplementedError for
    another regime than ``none``, ``linear`` and ``yarn``.
    """
    ones = np.ones(dims // 2)
    if regime == "none":
        return ones, 1.0
    if regime == "linear":
        return ones * factor, 1.0
    if regime != "yarn":
        raise NotImplementedError(f"the oracle does not know the RoPE scaling {regime!r}")
    # YaRN (Peng et al., 2023): pairs with more than beta_fast turns in the context keep their pace,
    # those with fewer than beta_slow are slowed by the factor, in between a ramp over the pairs.
    fast, slow = (
        dims * np.log(context / (2 * np.pi * beta)) / (2 * np.log(base))
        for beta in (beta_fast, beta_slow)
    )
    low, high = max(np.floor(fast), 0.0), min(np.ceil(slow), dims - 1.0)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    pace = (1 - ramp) + ramp / factor
    return 1 / pace, attention_factor * (1 + 0.1 * float(np.log(factor)))
