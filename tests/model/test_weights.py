"""Loading weights: what becomes of them, what is refused, and what it costs in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile, TensorInfo
from kvreuse.model.open import open_checkpoint
from kvreuse.model.weights import ModelWeights, load_weights
from kvreuse.ops import _native, reference
from kvreuse.ops.backend import SourceMatrix
from kvreuse.ops.native import NativeBackend
from kvreuse.ops.tensor_types import PACKINGS, TensorType

from .gguf.gguf_files import write_tiny

MIXED = {
    "blk.0.attn_k.weight": "Q8_0",
    "blk.0.attn_v.weight": "Q6_K",
    "blk.0.ffn_gate.weight": "Q5_K",
    "blk.1.attn_q.weight": "Q5_0",
    "blk.1.ffn_down.weight": "Q6_K",
    "blk.1.ffn_up.weight": "BF16",
}
# of the first block: where its fp16 scales and minima lie
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "F16": [0],
}


def load(path: Path) -> ModelWeights:
    with open_checkpoint(path) as checkpoint:
        return load_weights(checkpoint, NativeBackend(threads=2))


def wide(path: Path, architecture: str = "llama", **options: Any) -> Path:
    return write_tiny(path, architecture, hidden=256, ffn=512, heads=8, **options)


def worst_change(info: TensorInfo, raw: npt.NDArray[np.uint8]) -> float:
    """The largest change of a weight, relative to the largest of its group of 32, by NumPy."""
    rows, columns = info.shape
    made = reference.matrix(int(info.type), raw, rows, columns)
    if isinstance(made, reference.DenseMatrix):
        return 0.0
    kind = gguf.GGMLQuantizationType(int(info.type))
    exact = gguf.quants.dequantize(raw.reshape(rows, -1), kind).reshape(rows, -1, 32)
    packed = made.q * made.scale.astype(np.float64)[..., None]
    if made.minimum is not None:
        packed += made.minimum[..., None]
    changes, largest = np.abs(packed - exact).max(axis=-1), np.abs(exact).max(axis=-1)
    return float((changes[largest > 0] / largest[largest > 0]).max())


def test_the_report_has_every_type_and_its_largest_error(tmp_path: Path) -> None:
    path = wide(tmp_path / "x", matrix_type="Q4_K", embed_type="Q5_1", types=MIXED)
    report = load(path).repacked
    with GGUFFile(path) as file:
        matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) == 2]
        assert {TensorType[entry.type] for entry in report} == {t.type for t in matrices}
        for entry in report:
            own = [tensor for tensor in matrices if tensor.type.name == entry.type]
            assert entry.tensors == len(own)
            assert entry.file_bytes == sum(tensor.nbytes for tensor in own)
            packing = PACKINGS[TensorType[entry.type]]
            assert entry.layout == packing.layout
            worst = max(worst_change(tensor, file.data(tensor.name)) for tensor in own)
            assert entry.error == pytest.approx(worst, rel=1e-4)
            assert (entry.error == 0) == (packing.change == "exact")
    assert report[0].file_bytes == max(entry.file_bytes for entry in report)


@pytest.mark.parametrize("kind", sorted(PACKINGS))
def test_layouts_are_called_as_the_kernels_call_them(kind: TensorType) -> None:
    data = np.zeros(256 // kind.block_size * kind.block_bytes, np.uint8)
    matrix = _native.Kernels("", 1).pack([(data, int(kind), 1, 256)], _native.Arena())
    assert matrix.kind == PACKINGS[kind].layout
    assert matrix.error == 0


def test_what_an_architecture_lacks_is_none(tmp_path: Path) -> None:
    plain = load(write_tiny(tmp_path / "llama")).layers[1]
    assert plain.qkv_bias is plain.q_norm is plain.k_norm is None
    assert plain.post_attention_norm is plain.post_ffn_norm is None


def test_biases_are_those_of_queries_keys_and_values(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", "qwen2")
    bias = load(path).layers[1].qkv_bias
    with GGUFFile(path) as file:
        parts = [file.data(f"blk.1.attn_{x}.bias").view(np.float32) for x in "qkv"]
        assert bias is not None
        np.testing.assert_array_equal(bias, np.concatenate(parts))


def test_norms_of_heads_and_of_outputs(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", "gemma3", norm_type="F32")
    layer = load(path).layers[0]
    with GGUFFile(path) as file:
        for loaded, name in (
            (layer.q_norm, "attn_q_norm"),
            (layer.k_norm, "attn_k_norm"),
            (layer.post_attention_norm, "post_attention_norm"),
            (layer.post_ffn_norm, "post_ffw_norm"),
        ):
            stored = file.data(f"blk.0.{name}.weight").view(np.float32)
            assert loaded is not None
            np.testing.assert_array_equal(loaded, stored)


def test_progress_counts_the_bytes_of_the_matrices(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_checkpoint(write_tiny(tmp_path / "x", tied=False)) as checkpoint:
        load_weights(checkpoint, NativeBackend(threads=1), lambda *step: seen.append(step))
        total = sum(t.nbytes for t in checkpoint.tensors.values() if len(t.shape) == 2)
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1] == (total, total)


@pytest.mark.parametrize(
    "value", [b"\x00\x7e", b"\x00\x7c", b"\x00\xfc"], ids=["nan", "inf", "-inf"]
)
@pytest.mark.parametrize(
    ("kind", "at"), [(kind, at) for kind, places in HALVES.items() for at in places]
)
def test_scales_that_are_not_finite_are_refused(
    tmp_path: Path, kind: str, at: int, value: bytes
) -> None:
    path = wide(tmp_path / "x", types={"blk.1.ffn_up.weight": kind}, layers=2)
    damage(path, "blk.1.ffn_up.weight", row=37, at=at, value=value)
    refused(path, "the tensor 'blk.1.ffn_up.weight' holds a number that is not finite.* in row 37$")


@pytest.mark.parametrize(("kind", "value"), [("F32", b"\x00\x00\x80\x7f"), ("BF16", b"\xc0\x7f")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, kind: str, value: bytes) -> None:
    path = wide(tmp_path / "x", types={"output.weight": kind}, tied=False, vocab=321)
    damage(path, "output.weight", row=320, at=len(value), value=value)
    refused(path, "the tensor 'output.weight' holds a number that is not finite.* in row 320$")


def test_norms_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x")
    damage(path, "blk.0.ffn_norm.weight", row=0, at=8, value=struct.pack("<f", float("nan")))
    refused(path, "the tensor 'blk.0.ffn_norm.weight' holds a number that is not finite$")


def test_scales_beyond_half_precision_are_refused(tmp_path: Path) -> None:
    path = wide(tmp_path / "x", types={"blk.0.ffn_up.weight": "Q4_K"})
    largest = np.array([65504], np.float16).tobytes()
    damage(path, "blk.0.ffn_up.weight", row=3, at=0, value=largest + b"\0\0" + b"\x3f" * 12)
    refused(path, "the tensor 'blk.0.ffn_up.weight' holds a number .* too large, in row 3$")


def damage(path: Path, name: str, *, row: int, at: int, value: bytes) -> None:
    """Write ``value`` over a row of a tensor."""
    with GGUFFile(path) as file:
        tensor = file.tensors[name]
        row_bytes = tensor.nbytes // (tensor.shape[0] if len(tensor.shape) == 2 else 1)
    with path.open("r+b") as stream:
        stream.seek(tensor.offset + row * row_bytes + at)
        stream.write(value)


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as failure:
        load(path)
    assert str(failure.value).startswith(f"{path}: ")
    assert "\n" not in str(failure.value)


def test_a_loaded_file_takes_no_memory_while_it_is_open(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", hidden=512, ffn=2048, matrix_type="F16", embed_type="F16")
    with open_checkpoint(path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            checkpoint.data(tensor).max()
        before = resident(path)
        assert before > 0.9 * path.stat().st_size
        weights = load_weights(checkpoint, NativeBackend(threads=2))
        assert weights.nbytes > 0.9 * path.stat().st_size
        assert resident(path) < 0.1 * before


def resident(path: Path) -> int:
    """Bytes of a file's mappings that are in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split()[0]:  # the first line of a mapping
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.parametrize(("kind", "at"), [("Q4_K", 0), ("Q5_K", 0), ("Q6_K", 208)])
def test_scales_too_small_for_a_full_mantissa(tmp_path: Path, kind: str, at: int) -> None:
    """What their rounding costs is counted like any other."""
    path = wide(tmp_path / "x", types={"blk.0.ffn_up.weight": kind})
    rng = np.random.default_rng(3)
    with GGUFFile(path) as file:
        info = file.tensors["blk.0.ffn_up.weight"]
        blocks = file.data(info.name).copy().reshape(-1, info.type.block_bytes)
    small = np.exp2(rng.uniform(-22, -16, (len(blocks), 1))).astype(np.float16)
    blocks[:, at : at + 2] = small.view(np.uint8)
    raw = blocks.ravel()
    rows, columns = info.shape
    matrix = NativeBackend(threads=2).pack([SourceMatrix(raw, int(info.type), rows, columns)])
    assert matrix.error == pytest.approx(worst_change(info, raw), rel=1e-4)
