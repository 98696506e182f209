"""Calibration files: a round trip, and errors for damaged files and files of other models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import FORMAT, Calibration
from kvreuse.shape import LayerShape, attention

LAYERS, HEADS, HEAD_DIM = 3, 2, 32
SHAPES = (attention(HEADS, HEAD_DIM),) * LAYERS


def full(**changes: Any) -> Calibration:
    rng = np.random.default_rng(5)
    shape = LAYERS, HEADS, HEAD_DIM
    fields: dict[str, Any] = {
        "model_digest": "ab" * 32,
        "constants": rng.standard_normal(shape).astype(np.float32),
        "scales": rng.uniform(0.5, 2, shape).astype(np.float32),
        "clips": rng.uniform(0.5, 1, (LAYERS, 2, HEADS)).astype(np.float32),
        "widths": rng.integers(0, 3, (LAYERS, 2, HEADS)).astype(np.uint8),
        "errors": rng.uniform(0, 1, (2, LAYERS, 2, HEADS)).astype(np.float32),
        "hadamard_values": False,
        "increases": {"int8": 0.001, "int4": 0.4},
        "text": "a text, 8,192 tokens",
    }
    return Calibration(**{**fields, **changes})


def saved(calibration: Calibration, folder: Path) -> Path:
    path = folder / "made" / "on the way" / "c.safetensors"
    calibration.save(path)
    return path


def assert_equal(one: Calibration, other: Calibration) -> None:
    for field in dataclasses.fields(Calibration):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name
    assert one.digest == other.digest


def test_comes_back(tmp_path: Path) -> None:
    calibration = full()
    path = saved(calibration, tmp_path)
    assert_equal(Calibration.load(path), calibration)
    assert list(path.parent.iterdir()) == [path]


def test_all_of_it_is_optional(tmp_path: Path) -> None:
    bare = Calibration("cd" * 32)
    assert_equal(Calibration.load(saved(bare, tmp_path)), bare)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_digest": "cd" * 32},
        {"constants": None},
        {"scales": full().scales * np.float32(2)},  # type: ignore[operator]
        {"clips": None},
        {"widths": np.zeros((LAYERS, 2, HEADS), np.uint8)},
        {"hadamard_keys": False},
        {"hadamard_values": True},
    ],
)
def test_the_digest_is_of_what_bytes_depend_on(changes: dict[str, Any]) -> None:
    assert full(**changes).digest != full().digest


def test_the_digest_is_not_of_what_was_measured() -> None:
    assert full(errors=None, increases={}, text="").digest == full().digest


def test_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"of another model .* kvreuse calibrate"):
        full().check_model("ef" * 32)
    full().check_model("ab" * 32)
    full().check_layers(SHAPES)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (SHAPES[1:], "2 layers and 2 KV heads of 32 channels"),
        ((attention(HEADS + 1, HEAD_DIM),) * LAYERS, "3 layers and 3 KV heads of 32 channels"),
        ((attention(HEADS, HEAD_DIM + 1),) * LAYERS, "3 layers and 2 KV heads of 33 channels"),
        ((*SHAPES[1:], attention(4, 64)), "3 layers and 2 or 4 KV heads of 32 or 64 channels"),
    ],
    ids=["layers", "heads", "channels", "one layer"],
)
def test_other_layers_are_refused(layers: tuple[LayerShape, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"are of shape \[.*\], the model has {words}"):
        full().check_layers(layers)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 0.9999])
def test_a_cut_file_is_an_error(tmp_path: Path, share: float) -> None:
    path = saved(full(), tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ConfigError, match=r"cannot read the calibration .*c\.safetensors") as info:
        Calibration.load(path)
    assert "\n" not in str(info.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.safetensors: no such file"):
        Calibration.load(tmp_path / "none.safetensors")


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the calibration"):
        Calibration.load(tmp_path)


def test_other_safetensors_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": np.zeros((2, 2), np.float32)}, path)
    with pytest.raises(ConfigError, match="not a calibration that this version"):
        Calibration.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hadamard_keys", 2),
        ("hadamard_values", None),
        ("increases", [1]),
        ("increases", {"int8": float("nan")}),
        ("increases", {"int8": "many"}),
        ("model_digest", None),
        ("text", ["a"]),
    ],
)
def test_a_damaged_header_is_an_error(tmp_path: Path, key: str, value: object) -> None:
    path = saved(full(), tmp_path)
    facts = json.loads(full()._metadata()[FORMAT])
    for damaged in ({**facts, key: value}, {k: v for k, v in facts.items() if k != key}):
        save_file(load_file(path), path, metadata={FORMAT: json.dumps(damaged)})
        with pytest.raises(ConfigError, match="its header is damaged"):
            Calibration.load(path)


@pytest.mark.parametrize("facts", ["", "{", "[]", "3"])
def test_a_header_that_is_no_object_is_an_error(tmp_path: Path, facts: str) -> None:
    path = saved(full(), tmp_path)
    save_file(load_file(path), path, metadata={FORMAT: facts})
    with pytest.raises(ConfigError, match="its header is damaged"):
        Calibration.load(path)


def test_equal_calibrations_make_equal_files(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    full().save(one)
    full(increases=dict(sorted(full().increases.items()))).save(other)
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("scales", np.zeros((LAYERS, HEADS, HEAD_DIM), np.float32), "scales out of range"),
        ("constants", np.full((LAYERS, HEADS, HEAD_DIM), np.nan, np.float32), "constants out"),
        ("clips", np.full((LAYERS, 2, HEADS), 1.5, np.float32), "clips out of range"),
        ("widths", np.full((LAYERS, 2, HEADS), 3, np.uint8), "widths out of range"),
        ("widths", np.zeros((LAYERS, 2, HEADS), np.float32), "widths are float32"),
        ("constants", np.zeros((HEAD_DIM,), np.float32), r"constants are float32\[32\]"),
        ("errors", np.zeros((2, LAYERS + 1, 2, HEADS), np.float32), "different numbers of layers"),
    ],
)
def test_numbers_that_cannot_be_are_an_error(
    tmp_path: Path, name: str, array: np.ndarray[Any, Any], message: str
) -> None:
    path = saved(full(), tmp_path)
    save_file({**load_file(path), name: array}, path, metadata=full()._metadata())
    with pytest.raises(ConfigError, match=f"cannot read the calibration .*{message}"):
        Calibration.load(path)


def test_a_codec_that_collapses_is_refused_with_the_figures() -> None:
    calibration = full(increases={"int8": 0.0011, "k8v4": 0.03, "int4": 7.5})
    refusal = calibration.refusal("int4")
    assert refusal is not None
    for words in ("750%", "int8 +0.1%", "k8v4 +3.0%", "--force-kv-cache-dtype", "8,192 tokens"):
        assert words in refusal
    assert calibration.refusal("int8") is None
    assert calibration.refusal("auto") is None
