"""What is learnt from a text, on the real model: it makes int4 keep more of what the model knew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvreuse.config import EngineConfig
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import LayerTransform, make_codec
from kvreuse.ops.batch import Int32Array
from kvreuse.shape import ModelShape, RopeSpec, attention
from kvreuse.study.quality.capture import Capture, LayerRows, rope_pairs, turn
from kvreuse.study.quality.errors import CLIPS, layer_errors
from kvreuse.study.quality.evaluate import evaluate
from kvreuse.study.quality.learn import HORIZON, learn
from kvreuse.study.quality.projection import OutputWeights
from kvreuse.study.quality.subject import Subject
from kvreuse.study.quality.texts import standard_text, windows_of
from kvreuse.study.quality.transforms import LARGEST_SCALE, Float64Array, Moments

CONTEXT = 128
PLAIN = LayerTransform(None, None, False, False)


@pytest.fixture(scope="module")
def subject(model_path: Path) -> Subject:
    return Subject.load(model_path, EngineConfig(model=str(model_path)))


@pytest.fixture(scope="module")
def windows(subject: Subject) -> list[Int32Array]:
    return windows_of(standard_text(), subject.tokenizer, CONTEXT, 3)


@pytest.fixture(scope="module")
def learnt(subject: Subject, windows: list[Int32Array]) -> Calibration:
    return learn(subject, windows[:2])


def test_constants_are_the_means_of_keys(
    subject: Subject, windows: list[Int32Array], learnt: Calibration
) -> None:
    """Of keys turned to every position of the context."""
    capture = Capture(subject, CONTEXT)
    rows = capture.window(windows[0], np.array([9], dtype=np.int32), start=None)
    capture.close()
    assert learnt.constants is not None
    everywhere = np.arange(HORIZON, dtype=np.int32)
    for layer in (0, 17):
        mean = rows[layer].keys.mean(axis=0)
        turned = turn(np.broadcast_to(mean, (HORIZON, *mean.shape)), subject.shape.rope, everywhere)
        np.testing.assert_allclose(
            learnt.constants[layer], turned.mean(axis=0), rtol=1e-3, atol=2e-3
        )


def test_scales_are_tied_over_pairs(subject: Subject, learnt: Calibration) -> None:
    assert learnt.scales is not None
    first, second = rope_pairs(subject.shape.rope)
    assert (learnt.scales[..., first] == learnt.scales[..., second]).all()
    assert learnt.scales.max() > 1.1  # some help


def test_clips_are_among_those_tried(learnt: Calibration) -> None:
    assert learnt.clips is not None
    assert set(np.unique(learnt.clips)) <= set(np.array(CLIPS, dtype=np.float32))


def test_errors_are_less_than_without_transforms(
    subject: Subject, windows: list[Int32Array], learnt: Calibration
) -> None:
    assert learnt.errors is not None
    int8, int4 = learnt.errors
    assert (int8 < int4 / 5).all()
    capture, output = Capture(subject, CONTEXT), OutputWeights(subject)
    rows = capture.window(windows[1], np.arange(15, CONTEXT, 16, dtype=np.int32))
    capture.close()
    for layer in (0, len(rows) // 2, len(rows) - 1):
        behind = output.of(subject.weights.layers[layer])
        naive = layer_errors(subject.shape, layer, [rows[layer]], behind, PLAIN).int4
        assert np.square(int4[layer]).sum() < 0.8 * np.square(naive).sum()


def test_the_engine_agrees(
    subject: Subject, windows: list[Int32Array], learnt: Calibration
) -> None:
    """With what was learnt, int4 is nearer to bf16 than the naive recipe, and int8 nearer yet."""
    naive = Calibration(subject.digest, hadamard_keys=False, hadamard_values=False)
    codecs = [
        make_codec("int4", subject.shape.layers, naive),
        make_codec("int4", subject.shape.layers, learnt),
        make_codec("int8", subject.shape.layers, learnt),
        make_codec("bf16", subject.shape.layers, None),
    ]
    results = evaluate(subject, codecs, [windows[2]])
    coarse, fine, finer, same = (result.quality.kl_mean for result in results)
    assert coarse > 1.5 * fine
    assert fine > 3 * finer
    assert same == 0
    assert results[0].transform == results[3].transform == "no transform"
    assert results[1].transform == "constant, scale, Hadamard"
    again = evaluate(subject, codecs[:2], [windows[2]])
    assert [result.quality for result in again] == [result.quality for result in results[:2]]


def moments(keys: Float64Array, queries: Float64Array, horizon: int) -> Moments:
    shape = ModelShape(
        architecture="llama",
        layers=(attention(keys.shape[1], keys.shape[2]),) * 1,
        hidden_size=64,
        intermediate_size=64,
        num_heads=queries.shape[1],
        vocab_size=10,
        context_length=64,
        rms_norm_eps=1e-5,
        rope=RopeSpec("half", 1e4, keys.shape[2]),
    )
    found = Moments(shape, shape.rope, horizon)
    positions = np.arange(len(queries), dtype=np.int32)
    for part in np.array_split(np.arange(len(keys)), 3):
        found.add(
            LayerRows(
                positions,
                queries.astype(np.float32),
                keys[part].astype(np.float32),
                keys[part].astype(np.float32),
                np.ones(len(queries), dtype=np.float32),
            )
        )
    return found


def test_the_full_scale_balances_keys_and_queries() -> None:
    """Divided by it, keys are as large as queries multiplied by it are, channel by channel."""
    rng = np.random.default_rng(7)
    size = np.exp(rng.uniform(-1, 1, (1, 2, 8)))
    keys = 5 + rng.standard_normal((900, 2, 16)) * np.tile(size, 2)
    queries = rng.standard_normal((900, 4, 16)) / np.repeat(np.tile(size, 2), 2, axis=1)
    found = moments(keys, queries, 1)  # nothing turns
    np.testing.assert_allclose(found.constant, 5, atol=0.4)
    scale = found.full_scale()
    balance = (
        np.std(keys, axis=0)
        / scale
        / (np.sqrt(np.square(queries).reshape(900, 2, 2, 16).mean(axis=(0, 2))) * scale)
    )
    np.testing.assert_allclose(balance / balance.mean(axis=1, keepdims=True), 1, atol=0.15)
    np.testing.assert_allclose(np.log(scale).mean(axis=1), 0, atol=1e-6)


def test_what_turns_within_the_horizon_is_no_constant() -> None:
    keys, queries = np.full((30, 1, 16), 3.0), np.ones((30, 1, 16))
    constant = moments(keys, queries, 4096).constant[0]
    np.testing.assert_allclose(constant[[0, 8]], 0, atol=0.01)  # turns by a radian a position
    np.testing.assert_allclose(moments(keys, queries, 1).constant, 3)


def test_the_full_scale_has_bounds() -> None:
    keys, queries = np.ones((30, 1, 16)), np.ones((30, 1, 16))
    keys[:, :, 0] = np.tile([1e9, -1e9], 15)[:, None]  # the others stand still
    queries[:, :, 3] = 0
    scale = moments(keys, queries, 1).full_scale()
    assert np.isfinite(scale).all()
    assert scale.max() <= LARGEST_SCALE
    assert scale.min() >= 1 / LARGEST_SCALE
