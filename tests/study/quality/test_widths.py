"""Widths for ``auto``: a ladder from int4 to bf16, and the search for the rung that will do."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from kvreuse.ops.batch import Float32Array
from kvreuse.study.quality.increase import Increase
from kvreuse.study.quality.widths import (
    BF16,
    INT4,
    INT8,
    MOST_APART,
    MOST_TRIALS,
    Bytes,
    Mixture,
    bytes_of,
    ladder,
    narrowest,
    rates,
    search,
    uniform,
)

LAYERS, HEADS = 5, 3
EVEN = np.ones(2)


@pytest.fixture
def errors() -> Float32Array:
    int4 = np.random.default_rng(3).uniform(0.001, 0.1, (LAYERS, 2, HEADS))
    return np.stack([int4 / 15, int4]).astype(np.float32)


def cost(errors: Float32Array, widths: Bytes) -> float:
    squares = np.square(errors.astype(np.float64))
    return float(squares[1][widths == INT4].sum() + squares[0][widths == INT8].sum())


def test_every_rung_is_wider_and_better(errors: Float32Array) -> None:
    rungs = ladder(errors, 64, EVEN)
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
    assert ladder(errors, 64, EVEN)[1].widths[2, 0, 1] == INT8
    errors[0, 2, 0, 1] = 0.8  # int8 is hardly better there
    rungs = ladder(errors, 64, EVEN)
    assert next(r for r in rungs if (r.widths == BF16).any()).widths[2, 0, 1] == BF16


def found(
    errors: Float32Array, bound: float, measure: Callable[[Bytes], Increase]
) -> Mixture | None:
    rungs = ladder(errors, 64, EVEN)
    return narrowest(search(rungs, measure(rungs[0].widths), bound, measure), 64, bound)


@pytest.mark.parametrize("bound", [0.001, 0.005, 0.03, 0.2])
def test_the_choice_is_within_the_bound(errors: Float32Array, bound: float) -> None:
    measured = []

    def measure(widths: Bytes) -> Increase:
        measured.append(widths)
        return Increase(cost(errors, widths) * 2.5 + 1e-5, 1e-5)

    mixture = found(errors, bound, measure)
    assert mixture is not None
    assert mixture.increase.at_most <= bound
    assert len(measured) <= MOST_TRIALS + 1
    assert mixture.increase == measure(mixture.widths)
    if measure(measured[0]).at_most <= bound:
        assert (mixture.widths == INT4).all()
    else:  # and it uses a good part of what it may
        assert mixture.increase.at_most > 0.4 * bound


def test_where_errors_mislead_the_measure_decides(errors: Float32Array) -> None:
    """Perplexity grows more slowly with the error than is assumed."""

    def measure(widths: Bytes) -> Increase:
        return Increase(cost(errors, widths) ** 0.4 * 0.1, 0.0)

    bound = measure(ladder(errors, 64, EVEN)[35].widths).value
    mixture = found(errors, bound, measure)
    assert mixture is not None
    assert mixture.increase.value <= bound
    assert (mixture.widths != BF16).any()


def test_where_nothing_will_do_there_is_none(errors: Float32Array) -> None:
    assert found(errors, 1e-6, lambda widths: Increase(0.002, 0.001)) is None


def test_the_narrowest_is_chosen(errors: Float32Array) -> None:
    shape = LAYERS, 2, HEADS
    costs = {(INT8, INT8): 0.0, (INT8, INT4): 0.003, (INT4, INT8): 0.004, (INT4, INT4): 0.1}
    mixtures = [Mixture(uniform(shape, *w), Increase(c, 0.001)) for w, c in costs.items()]
    for bound, widths in ((0.2, (INT4, INT4)), (0.0045, (INT8, INT4)), (0.002, (INT8, INT8))):
        best = narrowest(mixtures, 64, bound)
        assert best is not None
        assert (best.widths == uniform(shape, *widths)).all()
    assert bytes_of(uniform(shape, INT8, INT8), 64) == LAYERS * HEADS * 2 * 68
    assert bytes_of(uniform(shape, INT8, INT4), 64) == LAYERS * HEADS * (68 + 36)


def test_rates_are_what_uniform_codecs_cost(errors: Float32Array) -> None:
    keys, values = np.square(errors[1].astype(np.float64)).sum(axis=(0, 2))
    int8, k8v4 = Increase(0.001, 0), Increase(0.001 + 2 * values, 0)
    int4 = Increase(k8v4.value + 3 * keys, 0)
    np.testing.assert_allclose(rates(errors, int8, k8v4, int4), [3, 2])
    # values that seem to cost less than nothing cost a little
    lucky = rates(errors, int8, Increase(-0.002, 0), int4)
    assert 0 < lucky[1] == lucky[0] / MOST_APART
    assert (rates(errors, int8, int8, int8) > 0).all()


def test_what_costs_more_is_widened_first(errors: Float32Array) -> None:
    planes = LAYERS * HEADS
    for rate, kind in ((np.array([1e6, 1.0]), 0), (np.array([1.0, 1e6]), 1)):
        widths = ladder(errors, 64, rate)[planes].widths
        assert (widths[:, 1 - kind] == INT4).all()
