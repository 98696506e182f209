"""PrefillRate: the cost of a prompt's token, from the steps that mostly prefill."""

from __future__ import annotations

import pytest

from kvreuse.engine.metrics import HALF_LIFE, LEAST_ROWS, PrefillRate


def test_small_and_decoding_steps_say_nothing() -> None:
    rate = PrefillRate()
    rate.observe(LEAST_ROWS - 1, LEAST_ROWS - 1, 1.0)
    rate.observe(LEAST_ROWS, 2 * LEAST_ROWS + 1, 1.0)
    assert rate.seconds_per_token is None
    rate.observe(100, 120, 0.6)
    assert rate.seconds_per_token == pytest.approx(0.005)


def test_the_latest_count_most() -> None:
    rate = PrefillRate()
    for _ in range(50):
        rate.observe(512, 512, 512 * 1e-3)
    for _ in range(HALF_LIFE // 512):
        rate.observe(512, 512, 512 * 3e-3)
    assert rate.seconds_per_token == pytest.approx(2e-3, rel=0.05)
