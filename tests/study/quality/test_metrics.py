"""Perplexity, divergence and agreement, held to the definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kvreuse.ops.batch import Float32Array, Int32Array
from kvreuse.study.quality.metrics import Comparison, surprise

VOCABULARY = 5_003


def case(seed: int, rows: int, noise: float) -> tuple[Float32Array, Float32Array, Int32Array]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((rows, VOCABULARY)).astype(np.float32) * 6
    candidate = reference + rng.standard_normal(reference.shape).astype(np.float32) * noise
    ids = rng.integers(0, VOCABULARY, rows).astype(np.int32)
    return reference, candidate.astype(np.float32), ids


def log_softmax(logits: Float32Array) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("noise", [3.0, 0.1, 0.003])
def test_against_the_definitions(noise: float) -> None:
    reference, candidate, ids = case(1, 600, noise)
    comparison = Comparison()
    for rows in (slice(0, 1), slice(1, 257), slice(257, 600)):
        comparison.update(reference[rows], candidate[rows], ids[:-1][rows])
    found = comparison.result()
    p, q = log_softmax(reference), log_softmax(candidate)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    at = np.arange(599), ids[:-1]
    assert found.tokens == 600
    assert found.kl_mean == pytest.approx(kl.mean(), rel=1e-3, abs=1e-7)
    assert found.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-3, abs=1e-7)
    assert found.reference_ppl == pytest.approx(np.exp(-p[at].mean()), rel=1e-6)
    assert found.ppl == pytest.approx(np.exp(-q[at].mean()), rel=1e-6)
    assert found.ppl_increase == pytest.approx(found.ppl / found.reference_ppl - 1)
    assert found.top1 == np.mean(p.argmax(axis=1) == q.argmax(axis=1))


def test_a_model_is_as_good_as_itself() -> None:
    reference, _, ids = case(2, 40, 0.0)
    comparison = Comparison()
    comparison.update(reference, reference.copy(), ids)
    found = comparison.result()
    assert (found.kl_mean, found.kl_p99, found.top1, found.ppl_increase) == (0, 0, 1, 0)


def test_surprise() -> None:
    reference, _, ids = case(3, 300, 0.0)
    expected = -log_softmax(reference)[np.arange(299), ids[:-1]]
    np.testing.assert_allclose(surprise(reference, ids[:-1]), expected, rtol=1e-6)
    assert surprise(reference[:1], ids[:0]).shape == (0,)
