"""Kernels one by one against their twins, at odd sizes, on every path of this CPU.

The tolerance is none: the twins follow the kernels' order of operations and roundings.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, quants

from kvreuse.ops import reference
from kvreuse.ops._native import (
    Arena,
    Attention,
    Batch,
    Input,
    Kernels,
    KVView,
    Matrix,
    Program,
    Projection,
    Rotary,
    Tensor,
    Workspace,
)

from ..model.gguf.random_blocks import BLOCKS

Float32 = npt.NDArray[np.float32]
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32")
WIDE_KINDS = tuple(BLOCKS)
MAX_ROWS = 300


@functools.cache
def kernels(isa: str, threads: int = 2) -> Kernels:
    return Kernels(isa, threads)


def random(seed: int, *shape: int, scale: float = 1.0) -> Float32:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def packed(isa: str, kind: str, rows: int, columns: int) -> tuple[Matrix, reference.Matrix]:
    """A random matrix as the kernels have it, and as the twins do."""
    type_id = GGMLQuantizationType[kind]
    values = random(rows + columns, rows, columns)
    raw = BLOCKS[kind](values) if kind in BLOCKS else quants.quantize(values, type_id)
    data = np.ascontiguousarray(raw).view(np.uint8).ravel()
    matrix = kernels(isa).pack([(data, int(type_id), rows, columns)], Arena())
    return matrix, reference.matrix(int(type_id), data, rows, columns)


def workspace(columns: int) -> Workspace:
    return Workspace(2, MAX_ROWS, columns, 64, 1, 1, 64, 1)


def filled(values: Float32) -> Tensor:
    tensor = Tensor(MAX_ROWS, values.shape[1])
    tensor.numpy()[:] = np.nan  # rows that are not asked for must not matter
    tensor.numpy()[: len(values)] = values
    return tensor


@pytest.mark.parametrize(
    ("kind", "outputs", "inputs"),
    [
        *((k, *s) for k in KINDS for s in ((16, 32), (48, 96), (80, 544), (37, 160))),
        *((k, *s) for k in WIDE_KINDS for s in ((16, 256), (37, 768))),
    ],
)
def test_linear(isa: str, kind: str, outputs: int, inputs: int) -> None:
    matrix, twin = packed(isa, kind, outputs, inputs)
    x = random(1, 50, inputs)
    x[3] = 0
    x[4, :32] *= 1e4
    expected = reference.linear(x, twin)
    space, projection = workspace(inputs), Projection([matrix])
    for rows in (1, 2, 3, 5, 8, 11, 12, 13, 15, 16, 17, 31, 33, 50):
        y = Tensor(MAX_ROWS, projection.outputs)
        y.numpy()[:] = 7
        kernels(isa).linear(
            space, projection, filled(x[:rows]), rows, Input.plain(), y, accumulate=False
        )
        np.testing.assert_array_equal(y.numpy()[:rows, :outputs], expected[:rows])
        assert (y.numpy()[rows:] == 7).all()


def test_linear_of_many_rows(isa: str) -> None:
    matrix, twin = packed(isa, "Q4_1", 32, 64)
    x = random(2, MAX_ROWS, 64)
    y = Tensor(MAX_ROWS, 32)
    kernels(isa).linear(
        workspace(64), Projection([matrix]), filled(x), MAX_ROWS, Input.plain(), y, accumulate=False
    )
    np.testing.assert_array_equal(y.numpy(), reference.linear(x, twin))


def test_projection_of_several_kinds_adds_to_what_is_there(isa: str) -> None:
    parts = [packed(isa, kind, 32, 64) for kind in ("Q4_0", "F16", "Q5_1", "Q8_0")]
    projection = Projection([matrix for matrix, _ in parts])
    for rows in (1, 20):
        x, before = random(3, rows, 64), random(4, rows, 128)
        y = filled(before)
        kernels(isa).linear(
            workspace(64), projection, filled(x), rows, Input.plain(), y, accumulate=True
        )
        products = np.concatenate([reference.linear(x, twin) for _, twin in parts], axis=1)
        np.testing.assert_array_equal(y.numpy()[:rows], before + products)


@pytest.mark.parametrize("inputs", [32, 96, 544, 1536])
def test_norm_and_gates_before_a_linear(isa: str, inputs: int) -> None:
    matrix, twin = packed(isa, "Q8_0", 16, inputs)
    norm = random(5, inputs)
    for rows in (1, 4, 33):
        x, gated = random(6, rows, inputs), random(7, rows, 2 * inputs, scale=4)
        gate, up = gated[:, :inputs], gated[:, inputs:]
        for given, source, expected in (
            (Input.rms_norm(norm, 1e-5), x, reference.rms_norm(x, norm, 1e-5)),
            (Input.silu_mul(), gated, reference.silu_mul(gate, up)),
            (Input.gelu_mul(), gated, reference.gelu_mul(gate, up)),
        ):
            y = Tensor(MAX_ROWS, 16)
            kernels(isa).linear(
                workspace(inputs), Projection([matrix]), filled(source), rows, given, y, False
            )
            np.testing.assert_array_equal(y.numpy()[:rows], reference.linear(expected, twin))


@pytest.mark.parametrize("kind", [*KINDS, *WIDE_KINDS])
def test_embedding(isa: str, kind: str) -> None:
    columns = 256 if kind in WIDE_KINDS else 96
    matrix, twin = packed(isa, kind, 37, columns)
    ids = np.array([0, 36, 15, 16, 1, 36], dtype=np.int32)
    batch = Batch(MAX_ROWS, 1, 1, 10, 32, 1, vocabulary=37, positions=MAX_ROWS)
    load(batch, ids, np.arange(6, dtype=np.int32), np.zeros(6, np.int32), [[0]], [6])
    x = Tensor(MAX_ROWS, columns)
    program = Program(kernels(isa), workspace(columns), batch)
    program.embed(matrix, 1.5, x)
    program.run()
    np.testing.assert_array_equal(x.numpy()[:6], reference.embed(twin, ids, 1.5))


def load(
    batch: Batch,
    ids: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int32],
    row_seq: npt.NDArray[np.int32],
    tables: list[list[int]],
    kv_len: list[int],
    units: int = 4,
) -> None:
    batch.load(
        ids,
        positions,
        row_seq,
        np.array(tables, dtype=np.int32),
        np.array(kv_len, dtype=np.int32),
        np.zeros(0, dtype=np.int32),
        units,
    )


def attention(isa: str, group: int, head_dim: int, lengths: list[int], seed: int) -> Float32:
    """What the last row of each sequence sees, its keys and values written 7 rows at a time."""
    heads = 2 * group
    width = (heads + 4) * head_dim
    pages = sum(-(-n // 32) for n in lengths)
    pool = np.full((pages, 2 * 2 * 32 * head_dim * 2), 0xFF, dtype=np.uint8)
    view = KVView(pool, 32, 1, 2, group, head_dim)
    angles = np.arange(1200, dtype=np.float64)[:, None] / 1e4 ** (np.arange(head_dim // 2) / 64)
    rotary = Rotary(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), False)
    layer = Attention(view, rotary, 0, 0.2)
    free = np.random.default_rng(seed).permutation(pages).tolist()
    tables = [[free.pop() for _ in range(-(-n // 32))] for n in lengths]
    wide = max(len(table) for table in tables)
    tables = [table + [0] * (wide - len(table)) for table in tables]
    batch = Batch(
        MAX_ROWS, 1, len(lengths), wide, 32, pages, vocabulary=9, positions=1200, group_size=group
    )
    space = Workspace(2, MAX_ROWS, 64, heads * head_dim, group, heads, head_dim, 64)
    qkv, out = Tensor(MAX_ROWS, width), Tensor(MAX_ROWS, heads * head_dim)
    results = []
    for i, n in enumerate(lengths):
        rows = random(seed + i, n, width)
        for start in range(0, n, 7):
            count = min(7, n - start)
            qkv.numpy()[:count] = rows[start : start + count]
            load(
                batch,
                np.zeros(count, dtype=np.int32),
                np.arange(start, start + count, dtype=np.int32),
                np.full(count, i, dtype=np.int32),
                tables,
                [start + count if j == i else 0 for j in range(len(lengths))],
            )
            kernels(isa).attend(space, batch, layer, qkv, out)
        results.append(out.numpy()[count - 1].copy())
    return np.array(results)


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8])
def test_attention_is_the_portable_path_s(isa: str, group: int) -> None:
    """Any GQA ratio, few rows at a time; the twin itself is held to in tests/test_twins.py."""
    lengths = [1, 2, 31, 33, 95]
    computed = attention(isa, group, 64, lengths, seed=11)
    assert np.isfinite(computed).all()
    np.testing.assert_array_equal(computed, attention("portable", group, 64, lengths, seed=11))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [9]}, "a token id is 9"),
        ({"ids": [-1]}, "a token id is -1"),
        ({"positions": [5]}, "a position is 5"),
        ({"row_seq": [1]}, "a row's sequence is 1"),
        ({"tables": [[4]]}, "a page id is 4"),
        ({"kv_len": [33]}, "a sequence's length in the cache is 33"),
    ],
)
def test_a_batch_that_would_leave_its_bounds_is_refused(
    change: dict[str, list[int]], message: str
) -> None:
    batch = Batch(4, 1, 1, 1, 32, 4, vocabulary=9, positions=64)
    fields = {"ids": [0], "positions": [0], "row_seq": [0], "tables": [[0]], "kv_len": [1]}
    arrays = {name: np.array(v, dtype=np.int32) for name, v in {**fields, **change}.items()}
    with pytest.raises(ValueError, match=message):
        batch.load(**arrays, sample_rows=np.zeros(0, dtype=np.int32), units_wanted=1)


def test_threads_that_the_system_does_not_give_are_an_error() -> None:
    code = """
import resource
from kvreuse.errors import ConfigError
from kvreuse.ops.native import NativeBackend
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    NativeBackend(threads=1000).kernels
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert re.fullmatch(r"the system gives no more than \d+ of 1000 threads\n", done.stdout)


def test_unknown_and_missing_paths_are_named() -> None:
    with pytest.raises(ValueError, match="no instruction-set path is called 'sse9'"):
        Kernels("sse9", 1)
    with pytest.raises(ValueError, match="the number of threads"):
        Kernels("portable", 0)
