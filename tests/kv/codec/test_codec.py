"""KVCodec: from a name and a calibration to plane codecs, clips and transforms."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from kvreuse.config import KV_CACHE_DTYPES
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import AUTO, BF16, UNIFORM, KVCodec, make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.shape import KINDS, LayerShape, attention

LAYERS, HEADS, HEAD_DIM = 2, 3, 32
SHAPES = (attention(HEADS, HEAD_DIM),) * LAYERS


def made(name: str, calibration: Calibration | None = None) -> KVCodec:
    return make_codec(name, SHAPES, calibration)


def calibrated(**changes: Any) -> Calibration:
    rng = np.random.default_rng(0)
    whole = Calibration(
        "model",
        constants=rng.normal(size=(LAYERS, HEADS, HEAD_DIM)).astype(np.float32),
        scales=rng.uniform(0.5, 2, (LAYERS, HEADS, HEAD_DIM)).astype(np.float32),
        clips=rng.uniform(0.8, 1, (LAYERS, 2, HEADS)).astype(np.float32),
        widths=rng.permutation(np.arange(12) % 3).reshape(LAYERS, 2, HEADS).astype(np.uint8),
    )
    return dataclasses.replace(whole, **changes)


def test_the_configuration_knows_every_name() -> None:
    assert (*UNIFORM, AUTO) == KV_CACHE_DTYPES


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bf16", "bf16", "bf16"),
        ("int8", "int8", "int8"),
        ("int4", "int4", "int4"),
        ("k8v4", "int8", "int4"),
    ],
)
def test_codecs_of_planes(name: str, key: str, value: str) -> None:
    for codec in (made(name), made(name, calibrated())):
        assert codec.name == name
        assert codec.plane(1, "key", 2).name == key
        assert codec.plane(1, "value", 2).name == value


def test_auto_takes_the_widths_of_its_calibration() -> None:
    calibration = calibrated()
    assert calibration.widths is not None
    codec = made("auto", calibration)
    for layer in range(LAYERS):
        for head in range(HEADS):
            for i, kind in enumerate(KINDS):
                found = codec.plane(layer, kind, head).id
                assert found == calibration.widths[layer, i, head]


def test_bf16_stores_rows_as_they_are() -> None:
    for codec in (made("bf16"), made("bf16", calibrated())):
        assert codec == BF16
        assert codec.is_plain
        assert codec.transform(0) is None
        assert codec.digest == b""
        assert codec.describe() == "bf16"


@pytest.mark.parametrize("name", ["int8", "int4", "k8v4"])
def test_without_a_calibration_rows_are_rotated(name: str) -> None:
    codec = made(name)
    assert codec.transform(1) == (None, None, True, True)
    assert codec.clip(1, "key", 2) == 1
    assert codec.digest == b""
    assert codec.describe() == f"{name} (not calibrated: Hadamard)"


@pytest.mark.parametrize("name", ["int8", "int4", "k8v4", "auto"])
def test_a_calibration_says_what_happens_to_rows(name: str) -> None:
    calibration = calibrated(hadamard_values=False)
    codec = made(name, calibration)
    transform = codec.transform(1)
    assert transform is not None
    assert calibration.constants is not None
    assert calibration.scales is not None
    assert calibration.clips is not None
    np.testing.assert_array_equal(transform.constant, calibration.constants[1])
    np.testing.assert_array_equal(transform.scale, calibration.scales[1])
    assert (transform.hadamard_keys, transform.hadamard_values) == (True, False)
    for layer, kind, head in KVLayout.uniform(LAYERS, HEADS, HEAD_DIM, codec=codec).planes():
        four_bits = codec.plane(layer, kind, head).name == "int4"
        found = calibration.clips[layer, KINDS.index(kind), head]
        assert codec.clip(layer, kind, head) == (found if four_bits else 1)
    assert codec.digest == calibration.digest
    assert codec.describe() == f"{name} (calibrated: constant, scale, Hadamard)"


def test_everything_can_be_switched_off() -> None:
    naive = Calibration("model", hadamard_keys=False, hadamard_values=False)
    codec = made("int4", naive)
    assert codec.transform(0) is None
    assert codec.describe() == "int4 (calibrated: no transform)"
    assert codec != made("int4")


def test_equal_calibrations_make_equal_codecs() -> None:
    assert made("int8", calibrated()) == made("int8", calibrated())
    other = calibrated(clips=np.ones((LAYERS, 2, HEADS), dtype=np.float32))
    assert made("int8", calibrated()) != made("int8", other)


@pytest.mark.parametrize("calibration", [None, calibrated(widths=None)])
def test_auto_needs_widths(calibration: Calibration | None) -> None:
    with pytest.raises(ConfigError, match=r"auto needs a calibration .* run kvreuse calibrate"):
        made("auto", calibration)


@pytest.mark.parametrize("name", ["int8", "auto"])
@pytest.mark.parametrize(
    "layers",
    [
        SHAPES * 2,
        (attention(2 * HEADS, HEAD_DIM),) * LAYERS,
        (attention(HEADS, 2 * HEAD_DIM),) * LAYERS,
        (SHAPES[0], attention(2 * HEADS, HEAD_DIM)),
        (SHAPES[0], attention(HEADS, 2 * HEAD_DIM)),
    ],
    ids=["layers", "heads", "channels", "heads of one", "channels of one"],
)
def test_a_calibration_of_other_layers_is_refused(
    name: str, layers: tuple[LayerShape, ...]
) -> None:
    with pytest.raises(ConfigError, match="the calibration"):
        make_codec(name, layers, calibrated())
