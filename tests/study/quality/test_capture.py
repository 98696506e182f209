"""What is captured is what attention gets: pages of the same text hold it, rounded to bf16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvreuse.config import EngineConfig
from kvreuse.kv.codec.codec import BF16
from kvreuse.kv.codec.floats import from_bf16, to_bf16
from kvreuse.ops.batch import Int32Array
from kvreuse.shape import KINDS
from kvreuse.study.quality.attention import Probe
from kvreuse.study.quality.capture import Capture, LayerRows
from kvreuse.study.quality.projection import OutputWeights
from kvreuse.study.quality.subject import Measured, Subject
from kvreuse.study.quality.texts import standard_text, windows_of

from ...kv.planes_of_pages import decode, plane_bytes

TOKENS = 300  # more than one chunk


@pytest.fixture(scope="module")
def subject(real_model: Path) -> Subject:
    return Subject.load(real_model, EngineConfig(model=str(real_model)))


@pytest.fixture(scope="module")
def window(subject: Subject) -> Int32Array:
    return windows_of(standard_text(), subject.tokenizer, TOKENS, 1)[0]


@pytest.fixture(scope="module")
def captured(subject: Subject, window: Int32Array) -> list[LayerRows]:
    capture = Capture(subject, TOKENS)
    rows = capture.window(window, np.array([5, 100, 299], dtype=np.int32))
    capture.close()
    return rows


@pytest.fixture(scope="module")
def written(subject: Subject, window: Int32Array) -> Iterator[Measured]:
    """The same window, its keys and values in pages."""
    measured = Measured(subject, BF16, TOKENS)
    for _ in measured.logits(window):
        pass
    yield measured
    measured.close()


def test_keys_and_values_are_those_of_the_pages(
    subject: Subject, captured: list[LayerRows], written: Measured
) -> None:
    layout, data = written.pool.layout, written.pool.data
    shape = subject.shape
    for plane in layout.planes():
        codec, at = layout.plane_codec(*plane), plane_bytes(layout, plane)
        planes = [decode(codec, page[at], shape.head_dim, plane.kind) for page in data]
        stored = np.concatenate(planes)[:TOKENS]
        rows = captured[plane.layer]
        exact = (rows.keys if plane.kind == "key" else rows.values)[:, plane.head]
        rounded = from_bf16(to_bf16(exact))
        largest = np.abs(exact).max()
        # sums of another order may fall to the other side of a rounding
        assert np.abs(stored - rounded).max() <= largest * 2**-8
        assert np.mean(stored == rounded) > 0.98
    assert KINDS == ("key", "value")


def test_scores_do_not_depend_on_the_start(
    subject: Subject, window: Int32Array, captured: list[LayerRows]
) -> None:
    capture = Capture(subject, TOKENS)
    at = np.array([5, 100, 299], dtype=np.int32)
    later, still = (capture.window(window, at, start) for start in (1000, None))
    capture.close()
    for here, there, plain in zip(captured, later, still, strict=True):
        scores, others = (
            np.einsum("qd,td->qt", rows.queries[:, 0], rows.keys[:, 0]) for rows in (here, there)
        )
        np.testing.assert_allclose(scores, others, atol=1e-3 * np.abs(scores).max())
        np.testing.assert_array_equal(here.values, plain.values)
        assert np.abs(here.keys - plain.keys).max() > 0.1


def test_queries_and_residuals(subject: Subject, captured: list[LayerRows]) -> None:
    for rows in captured:
        assert rows.queries.shape == (3, subject.shape.num_heads, subject.shape.head_dim)
        assert rows.residual.shape == (3,)
        assert (rows.residual > 0).all()


def test_the_weights_behind_attention(subject: Subject, captured: list[LayerRows]) -> None:
    """One head's output through them is what the kernels' linear makes of it."""
    shape, layer = subject.shape, len(captured) // 2
    behind = OutputWeights(subject).of(subject.weights.layers[layer])
    assert behind.shape == (shape.q_size, shape.hidden_size)
    probe = Probe.of(shape, layer, captured[layer], 0, behind)
    assert probe.with_keys(probe.keys) == 0
    assert probe.with_values(probe.values) == 0
    # a value that is 1% too large in every channel makes the output 1% too large
    whole = probe.with_values(np.zeros_like(probe.values))
    assert probe.with_values(probe.values * np.float32(1.01)) == pytest.approx(
        whole * 1e-4, rel=1e-3
    )
    # a constant in all keys changes nothing
    shifted = probe.keys + np.float32(0.5)
    assert probe.with_keys(shifted) < whole * 1e-8
