"""Widths for ``auto``: a ladder from int4 to bf16, and the search for the rung that will do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvreuse.quality.increase import Increase
from kvreuse.quality.widths import BF16, INT4, INT8, MOST_TRIALS, Bytes, choose, ladder
from kvreuse.request import Float32Array

LAYERS, HEADS = 5, 3


@pytest.fixture
def errors() -> Float32Array:
    int4 = np.random.default_rng(3).uniform(0.001, 0.1, (LAYERS, 2, HEADS))
    return np.stack([int4 / 15, int4]).astype(np.float32)


def cost(errors: Float32Array, widths: Bytes) -> float:
    squares = np.square(errors.astype(np.float64))
    return float(squares[1][widths == INT4].sum() + squares[0][widths == INT8].sum())


def test_every_rung_is_wider_and_better(errors: Float32Array) -> None:
    rungs = ladder(errors, 64)
    planes = LAYERS * 2 * HEADS
    assert len(rungs) == 2 * planes + 1
    assert (rungs[0].widths == INT4).all()
    assert (rungs[-1].widths == BF16).all()
    for before, after in itertools.pairwise(rungs):
        changed = before.widths != after.widths
        assert changed.sum() == 1
        assert after.widths[changed] == before.widths[changed] - 1
        assert after.error < before.error
    for rung in rungs:
        assert rung.error == pytest.approx(cost(errors, rung.widths), abs=1e-12)


def test_the_worst_plane_is_widened_first(errors: Float32Array) -> None:
    errors[1, 2, 0, 1] = 0.9
    assert ladder(errors, 64)[1].widths[2, 0, 1] == INT8
    errors[0, 2, 0, 1] = 0.8  # int8 is hardly better there
    rungs = ladder(errors, 64)
    assert next(r for r in rungs if (r.widths == BF16).any()).widths[2, 0, 1] == BF16


@pytest.mark.parametrize("bound", [0.001, 0.005, 0.03, 0.2])
def test_the_choice_is_within_the_bound(errors: Float32Array, bound: float) -> None:
    measured = []

    def measure(widths: Bytes) -> Increase:
        measured.append(widths)
        return Increase(cost(errors, widths) * 2.5 + 1e-5, 1e-5)

    rungs = ladder(errors, 64)
    lowest = measure(rungs[0].widths)
    widths, increase = choose(rungs, lowest, bound, measure)
    assert increase.at_most <= bound
    assert increase == measure(widths)
    assert len(measured) <= MOST_TRIALS + 2
    if lowest.at_most <= bound:
        assert (widths == INT4).all()
    else:  # and it uses a good part of what it may
        assert increase.at_most > 0.4 * bound


def test_where_errors_mislead_the_measure_decides(errors: Float32Array) -> None:
    """Perplexity grows more slowly with the error than is assumed."""
    rungs = ladder(errors, 64)

    def measure(widths: Bytes) -> Increase:
        return Increase(cost(errors, widths) ** 0.4 * 0.1, 0.0)

    bound = measure(rungs[35].widths).value
    widths, increase = choose(rungs, measure(rungs[0].widths), bound, measure)
    assert increase.value <= bound
    assert (widths != BF16).any()


def test_where_nothing_will_do_all_is_bf16(errors: Float32Array) -> None:
    noise = Increase(0.002, 0.001)
    widths, increase = choose(ladder(errors, 64), noise, 1e-6, lambda widths: noise)
    assert (widths == BF16).all()
    assert increase == noise
