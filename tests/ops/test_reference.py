"""The twins of the row-wise kernels and of the linears, against exact or float64 arithmetic."""

from __future__ import annotations

from fractions import Fraction

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.ops import reference as ref
from kvreuse.shape import RopeScaling, RopeSpec

from ..model.gguf.random_blocks import BLOCKS

Float32 = npt.NDArray[np.float32]

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# types of 256 weights, and how much a weight may change, relative to the largest of its group of 32
WIDE_TYPES = {"Q4_K": 2.0**-9, "Q5_K": 2.0**-9, "Q6_K": 2.0**-7}
TINY = 2.0**-126

finite = st.floats(width=32, min_value=-(2.0**50), max_value=2.0**50)
normal = finite.filter(lambda x: x == 0 or abs(x) >= TINY)


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> Float32:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def nearest_float32(exact: Fraction) -> np.float32:
    """The float32 nearest to ``exact``, ties to even, denormals as zero."""
    guess = np.float32(float(exact))
    around = (
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    )
    distance = {x.tobytes(): abs(Fraction(float(x)) - exact) for x in around}
    best = [x for x in around if distance[x.tobytes()] == min(distance.values())]
    found = min(best, key=lambda x: int(x.view(np.uint32)) & 1)
    return np.float32(0) if abs(found) < TINY else found


def dense(weights: ref.Matrix) -> Float32:
    """The weights that a matrix stands for, float32 ``[rows, cols]``."""
    if isinstance(weights, ref.DenseMatrix):
        return weights.weights
    wide = weights.q * weights.scale[:, :, None]
    if weights.minimum is not None:
        wide = wide + weights.minimum[:, :, None]
    return np.asarray(wide.reshape(weights.shape), dtype=np.float32)


def random_matrix(kind: str, rows: int, cols: int, seed: int = 1) -> tuple[ref.Matrix, Float32]:
    """A matrix of GGUF type ``kind``, and its weights according to the ``gguf`` package."""
    type_ = gguf.GGMLQuantizationType[kind]
    values = floats(rows, cols, seed=seed, scale=0.1)
    raw = BLOCKS[kind](values) if kind in BLOCKS else gguf.quants.quantize(values, type_)
    made = ref.matrix(int(type_), raw.reshape(-1).view(np.uint8), rows, cols)
    return made, gguf.quants.dequantize(raw, type_).reshape(rows, cols)


class TestFloats:
    @settings(max_examples=500, deadline=None)
    @given(normal, normal, normal)
    def test_fma_is_rounded_once(self, a: float, b: float, c: float) -> None:
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        assert ref.fma(a, b, c) == nearest_float32(exact)

    @given(st.integers(0, 2**23 - 1), st.integers(1, 2**11), st.sampled_from([-1, 1]))
    def test_fma_near_a_tie(self, mantissa: int, step: int, sign: int) -> None:
        """A product just beside half a unit of ``c``: rounding to float64 first makes it a tie."""
        c = 1 + mantissa * 2.0**-23
        a, b = 2.0**-12 * (1 + step * 2.0**-23), 2.0**-12 * (1 - step * 2.0**-23)
        exact = Fraction(a) * Fraction(sign * b) + Fraction(c)
        assert ref.fma(a, sign * b, c) == nearest_float32(exact)

    def test_denormal_results_are_zero(self) -> None:
        smallest = np.float32(TINY)
        assert ref.fma(smallest, 1.0, 0.0) == smallest
        assert ref.fma(smallest, 0.5, 0.0) == 0
        assert np.signbit(ref.fma(smallest, -0.5, 0.0))
        assert ref.flush(np.float32(1e-40)) == 0

    def test_tree16_adds_by_halves(self) -> None:
        lanes = np.zeros((2, 16), dtype=np.float32)
        lanes[0, [0, 1, 8]] = 1e8, 1, -1e8  # lanes 0 and 8 meet first, so the 1 survives
        lanes[1] = np.arange(16)
        np.testing.assert_array_equal(ref.tree16(lanes), [1, 120])

    def test_exp2(self) -> None:
        t = np.linspace(-125, 126, 100_001).astype(np.float32)
        np.testing.assert_allclose(ref.exp2(t), np.exp2(t.astype(np.float64)), rtol=2e-7)
        whole = np.arange(-125, 127).astype(np.float32)
        np.testing.assert_array_equal(ref.exp2(whole), np.exp2(whole.astype(np.float64)))

    def test_exp2_ends(self) -> None:
        below = np.nextafter(np.float32(-125), np.float32(-200))
        np.testing.assert_array_equal(ref.exp2(np.array([below, -4e30], dtype=np.float32)), 0)
        assert ref.exp2(np.float32(500)) == np.float32(2.0**126)

    def test_bf16_rounds_to_nearest_even(self) -> None:
        x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.3], dtype=np.float32)
        rounded = ref.round_bf16(x)
        np.testing.assert_array_equal(rounded[:4], [1, 1, 1 + 2**-6, 1 + 2**-7])
        wide = floats(1000)
        assert np.abs(ref.round_bf16(wide) / wide - 1).max() <= 2.0**-8
        np.testing.assert_array_equal(ref.round_bf16(rounded), rounded)
        np.testing.assert_array_equal(ref.from_bf16(ref.to_bf16(rounded)), rounded)


class TestRows:
    def test_rms_norm(self) -> None:
        x, weight = floats(5, 96, scale=3), floats(96, seed=1)
        wide = x.astype(np.float64)
        expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
        np.testing.assert_allclose(ref.rms_norm(x, weight, 1e-5), expected, rtol=1e-6)

    def test_rms_norm_of_nothing_is_nothing(self) -> None:
        zeros = np.zeros((1, 32), dtype=np.float32)
        np.testing.assert_array_equal(ref.rms_norm(zeros, zeros[0] + 1, 1e-5), zeros)

    def test_quantized_rows_are_close(self) -> None:
        x = floats(7, 128, scale=5)
        q, scale, scaled_sum = ref.quantize_rows(x)
        assert q.dtype == np.int8
        groups, integers = x.reshape(7, 4, 32), q.reshape(7, 4, 32).astype(np.float64)
        error = np.abs(integers * scale[:, :, None] - groups)
        assert (error <= scale[:, :, None] * 0.50001).all()
        np.testing.assert_array_equal(scaled_sum, (integers.sum(axis=2) * scale).astype(np.float32))

    @given(st.floats(width=32, min_value=2**-80, max_value=2**80), st.sampled_from([-1, 1]))
    def test_a_groups_largest_value_is_127(self, largest: float, sign: int) -> None:
        x = np.full((1, 32), largest * sign, dtype=np.float32)
        q, scale, _ = ref.quantize_rows(x)
        assert (q == 127 * sign).all() or (q == 126 * sign).all()
        assert int(scale.view(np.uint32)[0, 0]) & 0xFF == 0  # sixteen bits of mantissa
        assert 127 * scale[0, 0] >= np.float32(largest) * (1 - 2.0**-22)

    def test_a_tiny_group_is_zero(self) -> None:
        x = np.zeros((1, 64), dtype=np.float32)
        x[0, 3], x[0, 40] = 1e-29, 1.0
        q, scale, scaled_sum = ref.quantize_rows(x)
        assert not q[0, :32].any()
        assert scale[0, 0] == scaled_sum[0, 0] == 0
        assert q[0, 40] == 127

    def test_silu_mul(self) -> None:
        gate, up = floats(3, 64, scale=4), floats(3, 64, seed=1)
        wide = gate.astype(np.float64)
        np.testing.assert_allclose(
            ref.silu_mul(gate, up), wide / (1 + np.exp(-wide)) * up, rtol=2e-6, atol=1e-30
        )
        far = np.array([-1e4, -100, 100], dtype=np.float32)
        np.testing.assert_allclose(ref.silu_mul(far, far + 1 - far), [0, 0, 100], atol=1e-30)

    def test_gelu_mul(self) -> None:
        gate, up = floats(3, 64, scale=2), floats(3, 64, seed=1)
        wide = gate.astype(np.float64)
        tanh = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
        np.testing.assert_allclose(
            ref.gelu_mul(gate, up), 0.5 * wide * (1 + tanh) * up, rtol=1e-5, atol=1e-7
        )


class TestMatrices:
    @pytest.mark.parametrize("kind", TYPES)
    def test_weights_are_those_of_the_gguf_package(self, kind: str) -> None:
        made, weights = random_matrix(kind, 48, 96)
        assert made.shape == (48, 96)
        np.testing.assert_array_equal(dense(made), weights)

    def test_other_types_are_refused(self) -> None:
        with pytest.raises(ValueError, match="type 10"):
            ref.matrix(10, np.zeros(84, dtype=np.uint8), 1, 256)

    @pytest.mark.parametrize("kind", WIDE_TYPES)
    def test_wide_blocks_are_near_those_of_the_gguf_package(self, kind: str) -> None:
        made, weights = random_matrix(kind, 64, 512)
        change = np.abs(dense(made) - weights).reshape(64, -1, 32).max(axis=-1)
        largest = np.abs(weights).reshape(64, -1, 32).max(axis=-1)
        assert isinstance(made, ref.IntegerMatrix)
        assert (change <= WIDE_TYPES[kind] * largest).all()
        for scales in (made.scale, made.minimum):
            if scales is not None:
                np.testing.assert_array_equal(scales, scales.astype(np.float16))

    def test_scales_that_fit_in_half_precision_change_nothing(self) -> None:
        """Q4_K and Q5_K where d is a power of two, Q6_K where both halves have one scale."""
        for kind, at in (("Q4_K", 0), ("Q5_K", 0), ("Q6_K", 208)):
            raw = BLOCKS[kind](floats(8, 512)).reshape(-1)
            type_ = gguf.GGMLQuantizationType[kind]
            blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[type_][1])
            blocks[:, at : at + 2] = np.array([0.25], np.float16).view(np.uint8)
            if kind == "Q6_K":
                blocks[:, 193:208:2] = blocks[:, 192:208:2]
                blocks[:, 0:192:32] = 0  # the first integer of each group is -32
            else:
                blocks[:, 2:4] = blocks[:, :2]
            expected = gguf.quants.dequantize(blocks, type_).reshape(8, 512)
            np.testing.assert_array_equal(dense(ref.matrix(int(type_), raw, 8, 512)), expected)

    @pytest.mark.parametrize("kind", TYPES)
    def test_embed_gives_the_rows(self, kind: str) -> None:
        made, weights = random_matrix(kind, 50, 64)
        ids = np.array([3, 49, 3], dtype=np.int32)
        np.testing.assert_array_equal(ref.embed(made, ids), weights[ids])
        np.testing.assert_array_equal(ref.embed(made, ids, 2.0), 2 * weights[ids])

    @pytest.mark.parametrize("kind", TYPES)
    def test_linear_is_a_product(self, kind: str) -> None:
        made, weights = random_matrix(kind, 40, 192)
        x = floats(3, 192)
        seen = x.astype(np.float64)
        if isinstance(made, ref.IntegerMatrix):
            rows = ref.quantize_rows(x)
            seen = rows.q.astype(np.float64) * np.repeat(rows.scale, 32, axis=1)
        np.testing.assert_allclose(
            ref.linear(x, made), seen @ weights.T.astype(np.float64), rtol=1e-4, atol=2e-6
        )

    def test_linear_adds_groups_in_ascending_order(self) -> None:
        """A small group is lost beside a huge one, unless the huge ones cancelled before."""
        q = np.zeros((2, 3, 32), dtype=np.int8)
        q[:, :, 0] = 1
        huge = 2.0**40
        scale = np.array([[huge, 1, -huge], [huge, -huge, 1]], dtype=np.float32)
        x = np.zeros((1, 96), dtype=np.float32)
        x[0, ::32] = 127
        got = ref.linear(x, ref.IntegerMatrix(q, scale, minimum=None))
        np.testing.assert_array_equal(got, [[0, 127]])

    @pytest.mark.parametrize("kind", TYPES)
    def test_a_row_does_not_depend_on_the_others(self, kind: str) -> None:
        made, _ = random_matrix(kind, 33, 64)
        x = floats(70, 64)
        together = ref.linear(x, made)
        alone = np.concatenate([ref.linear(row[None], made) for row in x])
        np.testing.assert_array_equal(together, alone)


class TestRope:
    @pytest.mark.parametrize("dims", [64, 32])
    @pytest.mark.parametrize("pairs", ["interleaved", "half"])
    def test_pairs_turn(self, pairs: str, dims: int) -> None:
        spec = RopeSpec(pairs="half" if pairs == "half" else "interleaved", base=1e4, dims=dims)
        x, positions = floats(4, 3, 64), np.array([0, 1, 77, 511], dtype=np.int32)
        turned = ref.rope(x, positions, ref.rope_tables(spec, 512), spec)
        one = np.arange(0, dims, 2) if pairs == "interleaved" else np.arange(dims // 2)
        two = one + (1 if pairs == "interleaved" else dims // 2)
        angle = positions[:, None, None] * 1e4 ** (-2.0 * np.arange(dims // 2) / dims)
        expected = (x[:, :, one] + 1j * x[:, :, two].astype(np.float64)) * np.exp(1j * angle)
        np.testing.assert_allclose(turned[:, :, one], expected.real, atol=1e-6)
        np.testing.assert_allclose(turned[:, :, two], expected.imag, atol=1e-6)
        np.testing.assert_array_equal(turned[:, :, dims:], x[:, :, dims:])
        np.testing.assert_array_equal(turned[0], x[0])

    @pytest.mark.parametrize(
        ("scaling", "params", "factors", "divisors", "stretch"),
        [
            ("linear", {"factor": 4.0}, (), [4, 4, 4, 4], 1),
            ("factors", {}, (1.0, 2.0, 4.0, 8.0), [1, 2, 4, 8], 1),
            # 64 tokens are 10.2, 3.4, 1.13 and 0.38 turns: 1, 0.80, 0.044 and 0 of the pace is kept
            (
                "llama3",
                {
                    "factor": 8.0,
                    "original_context": 64,
                    "low_freq_factor": 1,
                    "high_freq_factor": 4,
                },
                (),
                [1, 1.21413, 6.1187, 8],
                1,
            ),
            # 4 and 1 turns would be those of pairs 0.85 and 2.11: pairs 0 to 3 keep 1, 2/3, 1/3, 0
            (
                "yarn",
                {
                    "factor": 4.0,
                    "original_context": 64,
                    "beta_fast": 4,
                    "beta_slow": 1,
                    "attn_factor": 1.5,
                },
                (),
                [1, 4 / 3, 2, 4],
                1.5,
            ),
        ],
    )
    def test_scaled_regimes(
        self,
        scaling: RopeScaling,
        params: dict[str, float],
        factors: tuple[float, ...],
        divisors: list[float],
        stretch: float,
    ) -> None:
        spec = RopeSpec("half", 81.0, 8, scaling, tuple(params.items()), factors)
        cosines, sines = ref.rope_tables(spec, 50)
        angles = np.arange(50)[:, None] / (np.array([1, 3, 9, 27]) * divisors)
        np.testing.assert_allclose(cosines, stretch * np.cos(angles), atol=2e-3)
        np.testing.assert_allclose(sines, stretch * np.sin(angles), atol=2e-3)
