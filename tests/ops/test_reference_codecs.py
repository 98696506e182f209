"""The twins of transforms and of attention over integer planes, against float64 arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.kv.codec.codec import LayerTransform
from kvreuse.kv.layout import KVLayout, Plane
from kvreuse.ops import reference as ref
from kvreuse.ops.reference.products import as_integers
from kvreuse.shape import Kind, ModelShape, RopeSpec, attention

from ..kv_codecs import codec_for

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

HEADS, GROUP = 2, 3
CODECS = ("int8", "int4", "k8v4", "auto")
HEAD_DIMS = (16, 48, 64, 80, 96, 128, 256)


def floats(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sylvester(size: int) -> Float64:
    """The Hadamard matrix of a power of two, orthonormal, by its recursion."""
    matrix: Float64 = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size))


class TestHadamard:
    @pytest.mark.parametrize(
        ("dim", "block"),
        [(16, 16), (48, 16), (64, 64), (80, 16), (96, 32), (128, 128), (256, 256)],
    )
    def test_is_the_matrix_in_blocks(self, dim: int, block: int) -> None:
        x = floats(3, 2, dim)
        blocks = x.reshape(3, 2, -1, block).astype(np.float64) @ sylvester(block)
        np.testing.assert_allclose(ref.hadamard(x), blocks.reshape(x.shape), atol=3e-6)

    @pytest.mark.parametrize("dim", HEAD_DIMS)
    def test_undoes_itself(self, dim: int) -> None:
        x = floats(5, dim)
        np.testing.assert_allclose(ref.hadamard(ref.hadamard(x)), x, atol=3e-6)

    def test_spreads_an_outlier(self) -> None:
        x = np.zeros((1, 64), dtype=np.float32)
        x[0, 7] = 8
        np.testing.assert_array_equal(np.abs(ref.hadamard(x)), 1)


class TestTransforms:
    @pytest.mark.parametrize("hadamard", [False, True])
    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("shifted", [False, True])
    def test_differences_of_scores_stay(self, shifted: bool, scaled: bool, hadamard: bool) -> None:
        """Softmax sees differences only: a constant in all keys is a constant in all scores."""
        scale = np.exp2(np.random.default_rng(3).integers(-3, 4, (HEADS, 64))).astype(np.float32)
        transform = LayerTransform(
            10 * floats(HEADS, 64, seed=2) if shifted else None,
            scale if scaled else None,
            hadamard,
            False,
        )
        q, k = floats(2, HEADS * GROUP, 64), floats(9, HEADS, 64, seed=1)
        expected, found = (
            np.einsum(
                "qhd,khd->hqk",
                queries.astype(np.float64),
                np.repeat(keys, GROUP, axis=1).astype(np.float64),
            )
            for queries, keys in (
                (q, k),
                (ref.transform_queries(q, transform), ref.transform_keys(k, transform)),
            )
        )
        moved = found - expected
        np.testing.assert_allclose(moved - moved[:, :, :1], 0, atol=2e-3)
        assert (np.abs(moved) > 1).any() == shifted

    def test_values_come_back(self) -> None:
        transform, v = LayerTransform(None, None, False, True), floats(3, HEADS, 64)
        stored = ref.transform_values(v, transform)
        assert np.abs(stored - v).max() > 1
        np.testing.assert_allclose(ref.restore_values(stored, transform), v, atol=3e-6)

    def test_none_changes_nothing(self) -> None:
        x = floats(3, HEADS, 64)
        for transform in (None, LayerTransform(None, None, False, False)):
            for change in (
                ref.transform_keys,
                ref.transform_queries,
                ref.transform_values,
                ref.restore_values,
            ):
                np.testing.assert_array_equal(change(x, transform), x)


class TestIntegers:
    def test_of_a_row(self) -> None:
        levels, step = as_integers(np.array([[1, -0.5, 2**-20, 0], [0, 0, 0, 0]], dtype=np.float32))
        np.testing.assert_array_equal(levels, [[16256, -8128, 0, 0], [0, 0, 0, 0]])
        np.testing.assert_array_equal(step, np.array([[1 / 16256], [0]], dtype=np.float32))

    def test_what_is_no_number(self) -> None:
        levels, step = as_integers(np.array([[1, np.nan], [3.1e38, 1]], dtype=np.float32))
        np.testing.assert_array_equal(levels, 0)
        np.testing.assert_array_equal(step, np.inf)


class Case:
    """Two sequences over pages in a shuffled order; nothing is transformed."""

    def __init__(self, name: str, lengths: tuple[int, int], head_dim: int = 64) -> None:
        spec = ModelShape(
            architecture="llama",
            layers=(attention(HEADS, head_dim),) * 5,
            hidden_size=64,
            intermediate_size=64,
            num_heads=HEADS * GROUP,
            vocab_size=9,
            context_length=2048,
            rms_norm_eps=1e-5,
            rope=RopeSpec("half", 1e4, head_dim),
        )
        self.layout = KVLayout.of(spec, codec=codec_for(spec, name))
        self.lengths = lengths
        self.k = [floats(n, HEADS, head_dim, seed=n) for n in lengths]
        self.v = [floats(n, HEADS, head_dim, seed=n + 1) for n in lengths]
        raw = [floats(n, HEADS * GROUP, head_dim, seed=n + 2) * np.float32(3) for n in lengths]
        self.q = ref.scale_queries(np.concatenate(raw), head_dim)
        self.positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        self.row_seq = np.repeat(np.arange(2, dtype=np.int32), lengths)

    def attend(self, layer: int, rows: Ints, order: int = 0, window: int | None = None) -> Float32:
        """Attention with pages handed out in the order of a seed."""
        counts = [self.layout.pages_for(n) for n in self.lengths]
        given = np.random.default_rng(order).permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((2, max(counts)), dtype=np.int32)
        tables[0, : counts[0]], tables[1, : counts[1]] = given[: counts[0]], given[counts[0] :]
        pages = np.full((sum(counts), self.layout.page_bytes), 0xFF, dtype=np.uint8)
        for seq, n in enumerate(self.lengths):
            at = np.arange(n, dtype=np.int32)
            where = tables[seq][at // 32], at % np.int32(32)
            ref.write_rows(pages, self.layout, layer, where, k=self.k[seq], v=self.v[seq])
        return ref.attend(
            self.q[rows],
            pages,
            self.layout,
            layer=layer,
            tables=tables,
            kv_len=np.array(self.lengths, dtype=np.int32),
            positions=self.positions[rows],
            row_seq=self.row_seq[rows],
            window=window,
        )

    def expected(self, layer: int, rows: Ints, window: int | None = None) -> Float64:
        """Softmax attention in float64 over what the planes decode to."""
        out = []
        for row in rows:
            seq, position = int(self.row_seq[row]), int(self.positions[row])
            seen = slice(max(0, position + 1 - (window or position + 1)), position + 1)
            for head in range(HEADS * GROUP):
                k = self._stored(layer, "key", head // GROUP, self.k[seq])[seen]
                v = self._stored(layer, "value", head // GROUP, self.v[seq])[seen]
                scores = k @ self.q[row, head].astype(np.float64)
                weights = np.exp2(scores - scores.max())
                out.append(weights @ v / weights.sum())
        return np.concatenate(out).reshape(len(rows), -1)

    def _stored(self, layer: int, kind: Kind, head: int, rows: Float32) -> Float64:
        plane = Plane(layer, kind, head)
        codec, clip = self.layout.plane_codec(*plane), self.layout.codec.clip(*plane)
        records = codec.pack(rows[:, head], kind, clip)
        return codec.unpack(records, self.layout.layers[0].width(kind), kind).astype(np.float64)


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize("head_dim", [48, 64, 80, 128])
@pytest.mark.parametrize("name", CODECS)
def test_is_attention_over_the_decoded_rows(name: str, head_dim: int) -> None:
    case = Case(name, (130, 40), head_dim)
    rows = ints(0, 1, 31, 32, 63, 64, 100, 129, 130, 169)
    for layer in range(5):
        codecs = {
            case.layout.plane_codec(*plane).name
            for plane in case.layout.planes()
            if plane.layer == layer
        }
        # bf16 planes round queries and weights, too; integers of 15 bits are finer
        bound = 4e-2 if "bf16" in codecs else 2e-3
        np.testing.assert_allclose(
            case.attend(layer, rows), case.expected(layer, rows), rtol=bound, atol=bound
        )


@pytest.mark.parametrize("name", CODECS)
def test_over_parts_and_windows(name: str) -> None:
    case = Case(name, (1100, 520), 16)
    rows = ints(0, 511, 512, 544, 1023, 1099, 1100 + 511, 1100 + 519)
    for window in (None, 33, 600):
        np.testing.assert_allclose(
            case.attend(0, rows, window=window),
            case.expected(0, rows, window),
            rtol=4e-2,
            atol=4e-2,
        )


@pytest.mark.parametrize("name", CODECS)
def test_a_row_is_a_function_of_its_sequence_alone(name: str) -> None:
    case = Case(name, (130, 70))
    together = case.attend(1, np.arange(200, dtype=np.int32))
    for row in (0, 64, 129, 130, 199):
        np.testing.assert_array_equal(case.attend(1, ints(row), order=2)[0], together[row])
