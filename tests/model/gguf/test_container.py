"""The container: what is read, and that every lie ends in one clear line."""

from __future__ import annotations

import gc
import math
import os
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile, TensorInfo
from kvreuse.ops.tensor_types import TensorType

from .gguf_files import write_gguf
from .raw_gguf import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    U64,
    array,
    gguf_bytes,
    pair,
    string,
    tensor,
)

HUGE = (1 << 64) - 1
U32_ONE = struct.pack("<I", 1)


def read(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return GGUFFile(path)


def refusal(tmp_path: Path, content: bytes) -> str:
    """The message that a file gets, without its path."""
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path, content)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 'model.gguf'}: ")
    assert line.isprintable()
    return line.removeprefix(f"{tmp_path / 'model.gguf'}: ")


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "a.flag": True,
        "a.count": 7,
        "a.real": 0.5,
        "a.text": "ünï\n",
        "a.texts": ["", "日本", "x" * 300],
        "a.ints": [1, -2, 3],
        "a.reals": [0.25, -1.5],
        "a.flags": [True, False],
    }
    weights = np.arange(96, dtype=np.float32).reshape(3, 32)
    norm = np.ones(5, np.float32)
    path = write_gguf(tmp_path / "x", metadata, {"w": weights, "n": norm}, {"w": "Q8_0"})
    with GGUFFile(path) as file:
        assert file.version == 3
        found = {key: value for key, value in file.metadata.items() if key in metadata}
        for key in ("a.ints", "a.reals", "a.flags"):
            assert found[key].tolist() == metadata[key]
        assert {k: v for k, v in found.items() if not isinstance(v, np.ndarray)} == {
            k: v for k, v in metadata.items() if not isinstance(found[k], np.ndarray)
        }
        assert found["a.flags"].dtype == np.bool_
        info = file.tensors["w"]
        assert (info.type, info.shape, info.nbytes) == (TensorType.Q8_0, (3, 32), 3 * 34)
        assert Counter(tensor.type for tensor in file.tensors.values()) == {
            TensorType.Q8_0: 1,
            TensorType.F32: 1,
        }
        quantized = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        assert file.data("w").tobytes() == quantized.tobytes()
        assert file.data("n").view("<f4").tolist() == norm.tolist()


def test_tensor_bytes_are_a_read_only_view_that_outlives_the_file(tmp_path: Path) -> None:
    content = gguf_bytes(tensors=[tensor("t", [4])], data=bytes(range(16)))
    file = read(tmp_path, content)
    view = file.data("t")
    assert not view.flags.writeable
    assert not view.flags.owndata
    file.close()
    assert view.tolist() == list(range(16))
    with pytest.raises(ValueError, match="closed"):
        file.data("t")
    assert file.tensors["t"] == TensorInfo("t", TensorType.F32, (4,), 16, len(content) - 16)
    file.close()


def test_closing_unmaps(tmp_path: Path) -> None:
    def mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")

    file = read(tmp_path, gguf_bytes(tensors=[tensor("t", [4])], data=bytes(16)))
    view = file.data("t")
    file.close()
    assert mapped()
    del view
    gc.collect()
    assert not mapped()
    refusal(tmp_path, gguf_bytes(counts=(1, 0)))
    assert not mapped()


def test_scalars_of_all_types(tmp_path: Path) -> None:
    formats = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
    pairs = [pair(f"k{i}", i, struct.pack(f, 5)) for i, f in formats.items()]
    pairs += [pair("k6", 6, struct.pack("<f", 0.5)), pair("k12", 12, struct.pack("<d", 0.1))]
    pairs += [
        pair("big", U64, struct.pack("<Q", HUGE)),
        pair("nan", 6, struct.pack("<f", math.nan)),
    ]
    metadata = dict(read(tmp_path, gguf_bytes(pairs)).metadata)
    assert math.isnan(metadata.pop("nan"))
    assert metadata == {f"k{i}": 5 for i in formats} | {"k6": 0.5, "k12": 0.1, "big": HUGE}


def test_version_2_and_another_alignment(tmp_path: Path) -> None:
    pairs = [pair("general.alignment", U32, struct.pack("<I", 8))]
    tensors = [tensor("a", [1]), tensor("b", [1], offset=8)]
    head = gguf_bytes(pairs, tensors, version=2)
    unpadded = head[: len(b"".join(pairs) + b"".join(tensors)) + 24]
    content = unpadded + bytes(-len(unpadded) % 8) + struct.pack("<f4xf", 1, 2)
    file = read(tmp_path, content)
    assert file.version == 2
    assert file.data("b").view("<f4").tolist() == [2]


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [("i", int, 1), ("i", float, 1.0), ("f", float, 0.5), ("b", bool, True), ("s", str, "x")],
)
def test_get_by_kind(tmp_path: Path, key: str, kind: type[Any], value: object) -> None:
    pairs = [
        pair("i", U32, U32_ONE),
        pair("f", F32, struct.pack("<f", 0.5)),
        pair("b", BOOL, b"\1"),
        pair("s", STRING, string("x")),
    ]
    file = read(tmp_path, gguf_bytes(pairs))
    found = file.get(key, kind)
    assert (found, type(found)) == (value, type(value))
    assert file.get("absent", kind, None) is None
    with pytest.raises(ModelFileError, match="the key 'absent' is missing"):
        file.get("absent", kind)


@pytest.mark.parametrize(("key", "kind"), [("b", int), ("b", float), ("i", bool), ("i", str)])
def test_get_refuses_another_kind(tmp_path: Path, key: str, kind: type[Any]) -> None:
    file = read(tmp_path, gguf_bytes([pair("i", U32, U32_ONE), pair("b", BOOL, b"\1")]))
    with pytest.raises(ModelFileError, match=rf"the key '{key}' must hold .*, it holds "):
        file.get(key, kind, None)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "secret").touch(mode=0)
    cases = {
        tmp_path / "absent": "no such file",
        tmp_path: "is a folder; give the path of a .gguf file",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path / "empty": "the file is empty",
        tmp_path / ("x" * 5000): "cannot be read: File name too long",
        tmp_path / "nul\0": "cannot be read: embedded null",
        tmp_path / "empty" / "below": "cannot be read: Not a directory",
    }
    for path, message in cases.items():
        with pytest.raises(ModelFileError) as caught:
            GGUFFile(path)
        assert f": {message}" in str(caught.value)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GG", "is not a GGUF file: it starts with b'GG', not b'GGUF'"),
        (b"version https://git-lfs", "is not a GGUF file: it starts with b'vers', not b'GGUF'"),
        (gguf_bytes(magic=b"GGML"), "is not a GGUF file: it starts with b'GGML', not b'GGUF'"),
        (b"GGUF\3\0", "the header is cut off or damaged: the version needs 4 bytes, 2 left"),
        (gguf_bytes(version=1), "is GGUF version 1; versions 2 and 3 are supported"),
        (gguf_bytes(version=3 << 24), "is a big-endian GGUF file; convert it to little-endian"),
        (gguf_bytes(version=0), "is GGUF version 0; versions 2 and 3 are supported"),
        (gguf_bytes(counts=(HUGE, 0)), f"it claims {HUGE} tensors, with 16 bytes left"),
        (gguf_bytes(counts=(0, 1 << 40)), f"it claims {1 << 40} keys, with 8 bytes left"),
        (gguf_bytes([pair("k", 77, b"")]), "the key 'k' has the unknown type 77"),
        (gguf_bytes([pair("k", BOOL, b"\2")]), "the key 'k' must be true or false (1 or 0)"),
        (gguf_bytes([pair("k", U32, U32_ONE)] * 2), "the key 'k' is there twice"),
        (gguf_bytes([pair("k" * 65536, BOOL, b"\1")]), "the name of key 0 is 65536 bytes long"),
        (gguf_bytes([pair(b"\xff", BOOL, b"\1")]), "the name of key 0 is not UTF-8 (byte 0)"),
        (gguf_bytes([pair("k", STRING, string(b"ab\xc3"))]), "the key 'k' is not UTF-8 (byte 2)"),
        (
            gguf_bytes([pair("k", STRING, struct.pack("<Q", HUGE))]),
            f"the key 'k' is {HUGE} bytes long",
        ),
        (
            gguf_bytes([pair("k", STRING, struct.pack("<Q", 1000))]),
            "the key 'k' needs 1000 bytes, 19 left",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(I32, 1 << 62, b""))]),
            f"it claims {1 << 62} items of the key 'k'",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(STRING, 1 << 40, b""))]),
            f"it claims {1 << 40} items of the key 'k'",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(STRING, 2, string("a") + b"\xff" * 8))]),
            "item 1 of the key 'k' is too long",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(STRING, 2, string("a" * 24) + b"\1"))])[:84],
            "the key 'k' ends after 1 items",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(STRING, 2, string("a") + string(b"\xff")))]),
            "item 1 of the key 'k' is not UTF-8",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(BOOL, 3, b"\1\2\0"))]),
            "the key 'k' must be true or false (1 or 0), found 2",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(ARRAY, 1, array(I32, 0, b"")))]),
            "the key 'k' is an array of arrays or of the unknown type 9: not supported",
        ),
        (
            gguf_bytes([pair("general.alignment", U32, struct.pack("<I", 0))]),
            "general.alignment must be a power of two from 8 to 1048576",
        ),
        (
            gguf_bytes([pair("general.alignment", U32, struct.pack("<I", 48))]),
            "general.alignment must be a power of two from 8 to 1048576",
        ),
        (
            gguf_bytes([pair("general.alignment", STRING, string("32"))]),
            "general.alignment must be a power of two from 8 to 1048576",
        ),
        (gguf_bytes(tensors=[tensor("t", [])]), "the tensor 't' has 0 dimensions; 1 to 4"),
        (gguf_bytes(tensors=[tensor("t", [1] * 5)]), "the tensor 't' has 5 dimensions; 1 to 4"),
        (gguf_bytes(tensors=[tensor("t", [4, 0])]), "the tensor 't' is empty: its dimensions are"),
        (gguf_bytes(tensors=[tensor("t", [4], kind=4)]), "the tensor 't' has the unknown type 4"),
        (gguf_bytes(tensors=[tensor("t" * 65, [4])]), "the name of tensor 0 is 65 bytes long"),
        (
            gguf_bytes(tensors=[tensor("t", [33, 2], kind=3)]),
            "the tensor 't' has rows of 33, no multiple of Q4_1's 32",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [1 << 63, 1 << 63])]),
            f"the file is cut off: {1 << 128} bytes of 't' are missing",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [32], kind=3)], data=bytes(19)),
            "the file is cut off: 1 bytes of 't' are missing",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [1], offset=HUGE - 31)], data=bytes(64)),
            "bytes of 't' are missing",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [1], offset=4)], data=bytes(64)),
            "the tensor 't' is not aligned to 32 bytes",
        ),
        (
            gguf_bytes(tensors=[tensor("b", [9]), tensor("a", [1], offset=32)], data=bytes(64)),
            "the tensors 'b' and 'a' overlap",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [1]), tensor("t", [1], offset=32)], data=bytes(64)),
            "the tensor 't' is there twice",
        ),
        (
            gguf_bytes(tensors=[tensor("a\n\x1b[2J", [9]), tensor("b", [1])], data=bytes(64)),
            r"the tensors 'a\n\x1b[2J' and 'b' overlap",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lies(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(tmp_path, content)


def test_many_claims_cost_no_time(tmp_path: Path) -> None:
    # A header that claims as much as the file could hold, then nothing but zeros.
    content = gguf_bytes([pair("k", ARRAY, array(STRING, 1 << 21, b""))]) + bytes(1 << 24)
    start = time.perf_counter()
    file = read(tmp_path, content)
    assert len(file.metadata["k"]) == 1 << 21
    assert time.perf_counter() - start < 10


def test_the_real_file_is_read_in_a_moment(model_path: Path) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        with GGUFFile(model_path) as file:
            seconds.append(time.perf_counter() - start)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert Counter(tensor.type for tensor in file.tensors.values()) == {
        TensorType.Q4_1: 210,
        TensorType.F32: 61,
        TensorType.Q8_0: 1,
    }
    assert min(seconds) < 0.3
