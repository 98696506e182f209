"""Sequences that share pages are read together: the bits are as if each had been read alone."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvreuse.kv.layout import KVLayout
from kvreuse.ops import reference
from kvreuse.ops._native import Attention, Batch, Kernels, KVView, Rotary, Tensor, Workspace

Float32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
KV_HEADS, SCALE, POSITIONS = 2, 0.3, 4096
PAGES = 300


@functools.cache
def kernels(isa: str) -> Kernels:
    return Kernels(isa, 2)


@dataclasses.dataclass
class Sequence:
    """A table, and the last ``rows`` of its ``length`` tokens, which this step computes."""

    table: list[int]
    length: int
    rows: int = 1


@dataclasses.dataclass
class Step:
    """Sequences over one pool, and what attention makes of them."""

    sequences: list[Sequence]
    page_size: int = 32
    group: int = 1
    head_dim: int = 32
    window: int = 0
    units: int = 1

    def batch(self, grouped: bool) -> Batch:
        rows = sum(s.rows for s in self.sequences)
        width = max(len(s.table) for s in self.sequences)
        batch = Batch(
            rows,
            1,
            len(self.sequences),
            width,
            self.page_size,
            PAGES,
            vocabulary=1,
            positions=POSITIONS,
            group_size=self.group,
            grouped=grouped,
        )
        none = np.zeros(0, dtype=np.int32)
        ids = np.zeros(rows, dtype=np.int32)
        batch.load(ids, self.positions, self.row_seq, self.tables, self.kv_len, none, self.units)
        return batch

    @property
    def positions(self) -> Ints:
        ranges = [np.arange(s.length - s.rows, s.length) for s in self.sequences]
        return np.concatenate(ranges).astype(np.int32)

    @property
    def row_seq(self) -> Ints:
        rows = [s.rows for s in self.sequences]
        return np.repeat(np.arange(len(rows), dtype=np.int32), rows)

    @property
    def tables(self) -> Ints:
        width = max(len(s.table) for s in self.sequences)
        padded = [s.table + [0] * (width - len(s.table)) for s in self.sequences]
        return np.array(padded, dtype=np.int32)

    @property
    def kv_len(self) -> Ints:
        return np.array([s.length for s in self.sequences], dtype=np.int32)

    def inputs(self) -> tuple[npt.NDArray[np.uint8], Float32]:
        """A pool of random keys and values, and the rows' queries, keys and values."""
        random = np.random.default_rng(len(self.positions))
        size = self.page_size * self.head_dim * 2 * KV_HEADS
        bits = random.integers(0, 1 << 16, (PAGES, size), dtype=np.uint16)
        pool = (bits & 0x81FF | 0x3E00).view(np.uint8)  # both signs, magnitudes from 1/8 to 2
        width = (self.group + 2) * KV_HEADS * self.head_dim
        rows = 2 * random.standard_normal((len(self.positions), width)).astype(np.float32)
        return pool, rows

    def attend(self, isa: str, grouped: bool) -> Float32:
        """By the kernels; every position is rotated by nothing."""
        pool, rows = self.inputs()
        heads, batch = KV_HEADS * self.group, self.batch(grouped)
        view = KVView(pool, self.page_size, 1, KV_HEADS, self.group, self.head_dim)
        ones = np.ones((POSITIONS, self.head_dim // 2), dtype=np.float32)
        layer = Attention(
            view, Rotary(ones, ones * 0, False), 0, np.log2(np.e) * SCALE, self.window
        )
        width = heads * self.head_dim
        space = Workspace(
            2, len(rows), 64, width, self.group, heads, self.head_dim, batch.max_partials
        )
        qkv, out = Tensor(len(rows), rows.shape[1]), Tensor(len(rows), width)
        qkv.numpy()[:] = rows
        out.numpy()[:] = np.nan
        kernels(isa).attend(space, batch, layer, qkv, out)
        return out.numpy().copy()

    def twin(self) -> Float32:
        """By the twin, which knows of no groups."""
        pool, rows = self.inputs()
        heads, dim = KV_HEADS * self.group, self.head_dim
        q, k, v = np.split(rows.reshape(len(rows), -1, dim), [heads, heads + KV_HEADS], axis=1)
        layout = KVLayout.uniform(1, KV_HEADS, dim, self.page_size)
        pages = self.tables[self.row_seq, self.positions // self.page_size]
        where = pages, self.positions % np.int32(self.page_size)
        reference.write_rows(pool, layout, 0, where, k=k, v=v)
        return reference.attend(
            reference.scale_queries(q, dim, SCALE),
            pool,
            layout,
            layer=0,
            tables=self.tables,
            kv_len=self.kv_len,
            positions=self.positions,
            row_seq=self.row_seq,
            window=self.window or None,
        )


@st.composite
def steps(draw: st.DrawFn, longest: int) -> Step:
    """Sequences that branch off each other anywhere, and have some odd pages in common besides."""
    size = draw(st.sampled_from([32, 32, 64, 96]))
    free = list(range(PAGES))
    draw(st.randoms(use_true_random=False)).shuffle(free)
    sequences: list[Sequence] = []
    for _ in range(draw(st.integers(1, 10))):
        trunk: list[int] = []
        branches = draw(st.integers(0, 4)) > 0
        if sequences and branches:
            parent = draw(st.sampled_from(sequences))
            trunk = parent.table[: draw(st.integers(0, parent.length // size))]
        rows = draw(st.sampled_from([1, 1, 1, 2, 5, 20]))
        own = rows + draw(st.integers(0, 200))
        own = max(rows, min(own, longest - len(trunk) * size))
        length = len(trunk) * size + own
        if trunk and draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(trunk) - 1))
            other = draw(st.sampled_from(sequences))
            trunk[at] = draw(st.sampled_from(other.table))
        table = trunk + [free.pop() for _ in range(-(-own // size))]
        sequences.append(Sequence(table, length, rows))
    order = draw(st.permutations(sequences))
    return Step(
        list(order),
        size,
        group=draw(st.sampled_from([1, 2, 3, 8])),
        head_dim=draw(st.sampled_from([16, 32, 96])),
        window=draw(st.sampled_from([0, 0, 1, 64, 100, 600])),
        units=draw(st.sampled_from([1, 2, 5, 60])),
    )


def family(shared: int, own: int, count: int, **options: int) -> Step:
    """``count`` sequences with ``shared`` tokens in the same pages, then ``own`` of their own."""
    trunk, each = list(range(shared // 32)), -(-own // 32)
    tails = [range(40 + i * each, 40 + (i + 1) * each) for i in range(count)]
    return Step([Sequence([*trunk, *tail], shared + own) for tail in tails], **options)


@pytest.mark.parametrize("units", [1, 4, 40])
@pytest.mark.parametrize("window", [0, 500])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 128), (3, 64), (8, 32), (16, 16)])
def test_a_shared_prefix_gives_the_bits_of_the_twin(
    isa: str, group: int, head_dim: int, window: int, units: int
) -> None:
    """A prefix that ends within a part, branches of one and of several rows; whole and split."""
    trunk, free = list(range(38)), iter(range(50, PAGES))
    step = Step([], group=group, head_dim=head_dim, window=window, units=units)
    for shared, own, rows in ((38, 3, 1), (38, 40, 2), (20, 600, 1), (20, 75, 9), (1, 31, 1)):
        branch = [next(free) for _ in range(-(-own // 32))]
        for _ in range(3):
            tail = [*branch[:-1], next(free)]
            step.sequences.append(Sequence(trunk[:shared] + tail, shared * 32 + own, rows))
    together = step.attend(isa, grouped=True)
    np.testing.assert_array_equal(together, step.attend(isa, grouped=False))
    if isa == "portable" and units == 4:
        np.testing.assert_array_equal(together, step.twin())
    np.testing.assert_array_equal(together, step.attend("portable", grouped=True))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(step=steps(longest=1500))
def test_any_tables_give_the_same_bits(isa: str, step: Step) -> None:
    together = step.attend(isa, grouped=True)
    np.testing.assert_array_equal(together, step.attend(isa, grouped=False))
    for window in (0, 64, 100):
        assert step.batch(True).tiles_read(window) <= step.batch(False).tiles_read(window)


@settings(max_examples=8, deadline=None)
@given(step=steps(longest=700))
def test_any_tables_give_the_bits_of_the_twin(step: Step) -> None:
    np.testing.assert_array_equal(step.attend("portable", grouped=True), step.twin())


@pytest.mark.parametrize(("shared", "own"), [(1024, 32), (700 // 32 * 32, 40), (64, 33)])
def test_a_prefix_is_read_once(shared: int, own: int) -> None:
    """In whole steps of 64 tokens; the rest is read by each."""
    step, count = family(shared, own, 32), 32
    common = shared // 64 * 64
    rest = -(-(shared - common + own) // 32)
    assert step.batch(False).tiles_read() == count * (common // 32 + rest)
    assert step.batch(True).tiles_read() == common // 32 + count * rest


def test_items_are_bounded() -> None:
    """Each 64 rows of queries read the prefix again; idle threads get items of at least 16."""
    assert [family(1024, 32, 32, group=g).batch(True).items for g in (1, 2, 4, 8)] == [1, 1, 2, 2]
    wanted = [family(1024, 32, 32, units=units).batch(True).items for units in (1, 2)]
    assert wanted == [1, 2]


def test_every_level_of_a_tree_is_read_once() -> None:
    """512 tokens of all, 256 more of each half, 64 more of each quarter, 10 of each."""
    free = iter(range(PAGES))
    tree: list[list[int]] = [[next(free) for _ in range(16)]]
    for pages in (8, 2):
        tree = [node + [next(free) for _ in range(pages)] for node in tree for _ in range(2)]
    leaves = [Sequence([*node, next(free)], 842) for node in tree for _ in range(2)]
    step = Step([leaves[i] for i in (3, 0, 6, 5, 1, 7, 2, 4)])
    assert step.batch(True).tiles_read() == 16 + 2 * 8 + 4 * 2 + 8
    assert step.batch(False).tiles_read() == 8 * 27


def test_short_prompts_behind_a_prefix_are_read_together() -> None:
    step = family(512, 4, 4)
    step.sequences = [dataclasses.replace(s, rows=4) for s in step.sequences]
    assert step.batch(True).items == 1
    assert step.batch(True).tiles_read() == 16 + 4
    assert step.batch(False).tiles_read() == 4 * 17


def test_what_a_window_hides_is_not_read() -> None:
    """The last 100 tokens of 1,056 begin in the step at 896."""
    step = family(1024, 32, 8)
    assert step.batch(True).tiles_read(100) == 4 + 8
    assert step.batch(False).tiles_read(100) == 8 * 5


def test_sequences_that_share_little_stay_apart() -> None:
    step = family(64, 1000, 8)
    assert step.batch(True).items == 8
    assert step.batch(True).tiles_read() == step.batch(False).tiles_read()
