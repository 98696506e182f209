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


@dataclasses.dataclass(frozen=True, slots=True)
class Scaling:
    """How the rotation is slowed for texts longer than ``context``, what a model was trained on."""

    regime: str
    factor: float = 1.0
    context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    magnitude: float = 1.0

    def divisors(self, base: float, dims: int) -> Float64:
        """By how much each pair turns more slowly ``[dims / 2]``.

        Raises NotImplementedError for a regime that is not known.
        """
        pairs = np.arange(dims // 2)
        wavelength = 2 * np.pi * base ** (2.0 * pairs / dims)
        if self.regime == "none":
            return np.ones(dims // 2)
        if self.regime == "linear":
            return np.full(dims // 2, self.factor)
        if self.regime == "llama3":
            return np.array([self._llama3(float(length)) for length in wavelength])
        if self.regime == "yarn":
            return self._yarn(wavelength)
        raise NotImplementedError(f"the oracle does not know the RoPE scaling {self.regime!r}")

    def stretch(self) -> float:
        """What turned queries and keys are multiplied by."""
        more = 0.1 * float(np.log(self.factor)) if self.regime == "yarn" else 0.0
        return self.magnitude * (1 + more)

    def _llama3(self, wavelength: float) -> float:
        """Llama 3.1: short waves keep their pace, long ones are slowed, a mixture between."""
        turns = self.context / wavelength
        if turns > self.high_freq_factor:
            return 1.0
        if turns < self.low_freq_factor:
            return self.factor
        width = self.high_freq_factor - self.low_freq_factor
        smooth = (turns - self.low_freq_factor) / width
        return 1 / ((1 - smooth) / self.factor + smooth)

    def _yarn(self, wavelength: Float64) -> Float64:
        """YaRN (Peng et al., 2023): a ramp over the pairs instead.

        From the last pair with more than ``beta_fast`` turns to the first with fewer than
        ``beta_slow``: the numbers of the pairs grow with the logarithm of their wavelengths.
        """
        step = np.log(wavelength[1] / wavelength[0])
        fast, slow = (
            np.log(self.context / beta / wavelength[0]) / step
            for beta in (self.beta_fast, self.beta_slow)
        )
        low, high = max(np.floor(fast), 0.0), min(np.ceil(slow), 2.0 * len(wavelength) - 1)
        ramp = np.clip((np.arange(len(wavelength)) - low) / max(high - low, 0.001), 0, 1)
        return np.asarray(1 / (1 - ramp + ramp / self.factor))
