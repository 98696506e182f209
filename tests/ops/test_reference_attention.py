"""The twins of pages and of attention, against their description and float64 arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvreuse.kv.layout import KVLayout
from kvreuse.ops import reference as ref

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Pages = npt.NDArray[np.uint8]


def floats(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


def fresh(layout: KVLayout, num_pages: int) -> Pages:
    """Pages full of NaN: what nobody has written."""
    return np.full((num_pages, layout.page_bytes), 0xFF, dtype=np.uint8)


class TestPages:
    layout = KVLayout.uniform(num_layers=3, num_kv_heads=2, head_dim=64, page_size=64)
    where = (ints(4, 1, 1), ints(0, 37, 63))

    def test_rows_come_back_rounded(self) -> None:
        pages = fresh(self.layout, 5)
        k, v = floats(3, 2, 64), floats(3, 2, 64, seed=1)
        ref.write_rows(pages, self.layout, 1, self.where, k=k, v=v)
        k_read, v_read = ref.read_rows(pages, self.layout, 1, self.where)
        np.testing.assert_array_equal(k_read, ref.round_bf16(k))
        np.testing.assert_array_equal(v_read, ref.round_bf16(v))
        assert (pages != 0xFF).sum() <= 3 * 2 * 2 * 64 * 2  # nothing else was touched

    @pytest.mark.parametrize(("head", "token", "channel"), [(0, 0, 0), (1, 37, 5), (1, 63, 62)])
    def test_where_an_element_lies(self, head: int, token: int, channel: int) -> None:
        pages = np.zeros((1, self.layout.page_bytes), dtype=np.uint8)
        k, v = np.zeros((2, 1, 2, 64), dtype=np.float32)
        k[0, head, channel], v[0, head, channel] = 1.0, 2.0
        ref.write_rows(pages, self.layout, 2, (ints(0), ints(token)), k=k, v=v)
        tile, inside, plane = token // 32, token % 32, 64 * 64
        key = (2 * 2 * 2 + head) * plane + tile * 32 * 64
        key += inside // 16 * 16 * 64 + channel // 2 * 32 + inside % 16 * 2 + channel % 2
        value = (2 * 2 * 2 + 2 + head) * plane + tile * 32 * 64
        value += channel // 16 * 32 * 16 + inside // 2 * 32 + channel % 16 * 2 + inside % 2
        elements = pages.view(np.uint16)[0]
        np.testing.assert_array_equal(np.flatnonzero(elements), [key, value])
        np.testing.assert_array_equal(elements[[key, value]], [0x3F80, 0x4000])

    def test_copied_rows_are_the_first_of_all_layers(self) -> None:
        pages, layout = fresh(self.layout, 3), self.layout
        k, v, token = floats(64, 2, 64), floats(64, 2, 64, seed=1), np.arange(64, dtype=np.int32)
        source, target = np.zeros_like(token), np.full_like(token, 2)
        for layer in range(3):
            ref.write_rows(pages, layout, layer, (source, token), k=k + layer, v=v)
        ref.copy_rows(pages, layout, 0, 2, 21)
        for layer in range(3):
            k_read, v_read = ref.read_rows(pages, layout, layer, (target, token))
            np.testing.assert_array_equal(k_read[:21], ref.round_bf16(k[:21] + np.float32(layer)))
            np.testing.assert_array_equal(v_read[:21], ref.round_bf16(v[:21]))
            assert np.isnan(k_read[21:]).all()
            assert np.isnan(v_read[21:]).all()


class Case:
    """Two sequences over pages in a shuffled order; every row of both is a query."""

    def __init__(self, lengths: tuple[int, int], *, page_size: int = 32, dim: int = 64) -> None:
        self.layout = KVLayout.uniform(2, num_kv_heads=2, head_dim=dim, page_size=page_size)
        self.lengths = lengths
        self.heads = 6
        self.k = [floats(n, 2, dim, seed=n) for n in lengths]
        self.v = [floats(n, 2, dim, seed=n + 1) for n in lengths]
        raw = [floats(n, self.heads, dim, seed=n + 2) * np.float32(3) for n in lengths]
        self.q = ref.scale_queries(np.concatenate(raw), dim)
        self.positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        self.row_seq = np.repeat(ints(0, 1), lengths)

    def attend(self, order: int, rows: Ints | None = None, window: int | None = None) -> Float32:
        """Attention of ``rows`` with pages handed out in the order of a seed."""
        size = self.layout.page_size
        counts = [-(-n // size) for n in self.lengths]
        given = np.random.default_rng(order).permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((2, max(counts)), dtype=np.int32)
        tables[0, : counts[0]], tables[1, : counts[1]] = given[: counts[0]], given[counts[0] :]
        pages = fresh(self.layout, sum(counts))
        for seq, n in enumerate(self.lengths):
            at = np.arange(n, dtype=np.int32)
            where = tables[seq][at // size], at % np.int32(size)
            ref.write_rows(pages, self.layout, 1, where, k=self.k[seq], v=self.v[seq])
        chosen = np.arange(len(self.q)) if rows is None else rows
        return ref.attend(
            self.q[chosen],
            pages,
            self.layout,
            layer=1,
            tables=tables,
            kv_len=ints(*self.lengths),
            positions=self.positions[chosen],
            row_seq=self.row_seq[chosen],
            window=window,
        )

    def expected(self, window: int | None = None) -> Float64:
        """Softmax attention in float64 over the rounded queries, keys and values."""
        out = []
        for seq, n in enumerate(self.lengths):
            q = ref.round_bf16(self.q[self.row_seq == seq]).astype(np.float64)
            k = np.repeat(ref.round_bf16(self.k[seq]), self.heads // 2, axis=1).astype(np.float64)
            v = np.repeat(ref.round_bf16(self.v[seq]), self.heads // 2, axis=1).astype(np.float64)
            scores = np.einsum("rhd,thd->hrt", q, k)
            before = np.arange(n)[:, None] - np.arange(n)
            scores[:, (before < 0) | (before >= (window or n))] = -np.inf
            weights = np.exp2(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            out.append(np.einsum("hrt,thd->rhd", weights, v).reshape(n, -1))
        return np.concatenate(out)


def assert_close(attended: Float32, expected: Float64) -> None:
    """Weights are rounded to bf16 after their sum was taken: 2^-9 each, partly cancelling."""
    np.testing.assert_allclose(attended, expected, rtol=4e-3, atol=4e-3)


class TestAttend:
    @pytest.mark.parametrize("lengths", [(1, 2), (63, 65), (40, 97)])
    @pytest.mark.parametrize(("page_size", "dim"), [(32, 64), (64, 32), (96, 128)])
    def test_is_attention(self, lengths: tuple[int, int], page_size: int, dim: int) -> None:
        case = Case(lengths, page_size=page_size, dim=dim)
        assert_close(case.attend(0), case.expected())

    def test_is_attention_over_several_parts(self) -> None:
        case = Case((1100, 520))
        some = ints(0, 511, 512, 513, 1023, 1024, 1099, 1100 + 511, 1100 + 519)
        assert_close(case.attend(0, some), case.expected()[some])

    @pytest.mark.parametrize("window", [1, 33, 64, 512, 600, 2000])
    def test_is_attention_over_a_window(self, window: int) -> None:
        case = Case((1100, 520))
        some = ints(0, 40, 511, 512, 544, 1023, 1024, 1099, 1100 + 511, 1100 + 519)
        assert_close(case.attend(0, some, window), case.expected(window)[some])

    def test_a_window_hides_what_is_before_it(self) -> None:
        case = Case((700, 64))
        row = ints(699)
        seen = case.attend(0, row, 100)
        case.k[0][:600] = 7
        case.v[0][:600] = -3
        np.testing.assert_array_equal(case.attend(1, row, 100), seen)
        case.v[0][600] = -3
        assert (case.attend(1, row, 100) != seen).any()

    def test_a_window_of_all_tokens_is_none(self) -> None:
        case, some = Case((600, 64)), ints(0, 63, 512, 599, 663)
        np.testing.assert_array_equal(case.attend(0, some, 600), case.attend(1, some))

    def test_a_row_is_a_function_of_its_sequence_alone(self) -> None:
        case = Case((130, 70))
        together = case.attend(0)
        np.testing.assert_array_equal(case.attend(1), together)
        for row in (0, 64, 129, 130, 199):
            np.testing.assert_array_equal(case.attend(2, ints(row))[0], together[row])

    def test_equal_values_come_through(self) -> None:
        """Weights add up to one, but for their rounding, whatever the scores are."""
        case = Case((200, 31))
        case.v = [np.ones_like(v) for v in case.v]
        np.testing.assert_allclose(case.attend(0), 1, rtol=2.0**-8)

    def test_a_rising_maximum_is_followed(self) -> None:
        """Scores climb by far more than 8 from step to step, and fall again in the next part."""
        case = Case((600, 64))
        slope = np.linspace(-4, 4, 600)[:, None, None] * np.sign(case.q[599, 0])
        slope[520:] *= -1
        case.k[0] = (case.k[0] * 0.1 + slope).astype(np.float32)
        some = ints(63, 64, 300, 519, 520, 599)
        assert_close(case.attend(0, some), case.expected()[some])
