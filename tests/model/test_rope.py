"""Tables of the rotary embedding, pair by pair against the formulas of the papers' code."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kvreuse.model.rope import frequencies, rope_tables
from kvreuse.shape import RopeSpec

DIMS = 64
BASE = 10000.0
PARAMS = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context": 512.0,
    },
    "yarn": {
        "factor": 4.0,
        "original_context": 512.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attn_factor": 1.25,
    },
}


def plain(pair: int) -> float:
    return math.pow(BASE, -2 * pair / DIMS)


def linear(pair: int) -> float:
    """Positions divided by the factor (Chen et al., 2023)."""
    return plain(pair) / 4.0


def llama3(pair: int) -> float:
    """By wavelength, as in Llama 3.1's published code."""
    wavelength = 2 * math.pi / plain(pair)
    if wavelength < 512.0 / 4.0:
        return plain(pair)
    if wavelength > 512.0 / 1.0:
        return plain(pair) / 8.0
    smooth = (512.0 / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * plain(pair) / 8.0 + smooth * plain(pair)


def yarn(pair: int) -> float:
    """By the number of the pair, between those of 32 turns and of 1 turn in 512 tokens."""

    def number_of_pair(turns: float) -> float:
        """Where 512 tokens turn a pair so often: 512 / (2 pi) * base ** (-2 i / dims) = turns."""
        return DIMS / 2 * math.log(512.0 / (2 * math.pi * turns), BASE)

    low, high = math.floor(number_of_pair(32.0)), math.ceil(number_of_pair(1.0))
    if pair <= low:
        return plain(pair)
    if pair >= high:
        return plain(pair) / 4.0
    slowed = (pair - low) / (high - low)
    return slowed * plain(pair) / 4.0 + (1 - slowed) * plain(pair)


def spec(scaling: str) -> RopeSpec:
    params = tuple(PARAMS.get(scaling, {}).items())
    return RopeSpec("half", BASE, DIMS, scaling, params)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scaling", "formula"),
    [("none", plain), ("linear", linear), ("llama3", llama3), ("yarn", yarn)],
)
def test_frequencies(scaling: str, formula: Callable[[int], float]) -> None:
    expected = [formula(pair) for pair in range(DIMS // 2)]
    np.testing.assert_allclose(frequencies(spec(scaling)), expected, rtol=1e-12)


@pytest.mark.parametrize("scaling", ["llama3", "yarn"])
def test_a_regime_has_pairs_of_all_three_kinds(scaling: str) -> None:
    """Else the test above would compare less than it says."""
    trained, scaled = frequencies(spec("none")), frequencies(spec(scaling))
    slowed = np.round(trained / scaled, 9)
    factor = PARAMS[scaling]["factor"]
    assert (slowed == 1).sum() >= 2
    assert (slowed == factor).sum() >= 2
    assert ((slowed > 1) & (slowed < factor)).sum() >= 2


def test_factors_divide() -> None:
    factors = tuple(1.0 + pair / 8 for pair in range(DIMS // 2))
    rope = RopeSpec("half", BASE, DIMS, "factors", factors=factors)
    expected = [plain(pair) / factor for pair, factor in enumerate(factors)]
    np.testing.assert_allclose(frequencies(rope), expected, rtol=1e-12)


def test_llama3_is_what_its_converters_write_as_factors() -> None:
    """The divisors that a converter stores as float32 give the same frequencies."""
    rope = spec("llama3")
    divisors = (frequencies(spec("none")) / frequencies(rope)).astype(np.float32)
    stored = RopeSpec("half", BASE, DIMS, "factors", factors=tuple(divisors.tolist()))
    np.testing.assert_allclose(frequencies(stored), frequencies(rope), rtol=1e-7)


def test_yarn_of_a_context_without_slow_pairs() -> None:
    """Both ends of the ramp fall on pair 0 (or before it): all pairs but that one are slowed."""
    params = tuple({**PARAMS["yarn"], "original_context": 4.0}.items())
    scaled = frequencies(RopeSpec("half", BASE, DIMS, "yarn", params))
    assert scaled[0] == 1.0
    np.testing.assert_allclose(scaled[1:], frequencies(spec("none"))[1:] / 4, rtol=1e-12)


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3", "yarn"])
def test_tables(scaling: str) -> None:
    cosines, sines = rope_tables(spec(scaling), 1000)
    magnitude = 1.25 if scaling == "yarn" else 1.0
    assert cosines.shape == sines.shape == (1000, DIMS // 2)
    assert cosines.dtype == sines.dtype == np.float32
    for position in (0, 1, 7, 999):
        for pair in (0, 9, 31):
            angle = position * frequencies(spec(scaling))[pair]
            assert cosines[position, pair] == pytest.approx(magnitude * math.cos(angle), abs=1e-7)
            assert sines[position, pair] == pytest.approx(magnitude * math.sin(angle), abs=1e-7)


def test_a_position_does_not_depend_on_how_many_there_are() -> None:
    few, many = rope_tables(spec("yarn"), 40), rope_tables(spec("yarn"), 4000)
    assert all((a == b[:40]).all() for a, b in zip(few, many, strict=True))
