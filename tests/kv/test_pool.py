"""PagePool: the conservation law in every order of calls, and its memory."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PageError, PagePool, pages_within

SMALL = KVLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=32)
PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    """Calls in any order, valid and invalid, compared with a model of the owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(SMALL, PAGES)
        self.owners: list[list[int]] = []

    def counts(self) -> Counter[int]:
        return Counter(page for pages in self.owners for page in pages)

    @rule(n=st.integers(0, PAGES + 2))
    def alloc(self, n: int) -> None:
        free = PAGES - len(self.counts())
        pages = self.pool.alloc(n)
        if n > free:
            assert pages is None
            return
        assert pages is not None
        assert len(set(pages)) == n
        assert not set(pages) & set(self.counts())
        self.owners.append(pages)

    @precondition(lambda self: any(self.owners))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.counts())), max_size=6))
        self.pool.retain(pages)
        self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        pages = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        before = self.counts()
        freed = self.pool.release(pages)
        assert len(freed) == len(set(freed))
        assert set(freed) == set(pages) - set(before)

    @precondition(lambda self: len(self.counts()) < PAGES)
    @rule(data=st.data())
    def give_back_too_much(self, data: st.DataObject) -> None:
        counts = self.counts()
        owned = [page for page, count in counts.items() for _ in range(count)]
        free = data.draw(st.sampled_from(sorted(set(range(PAGES)) - set(counts))))
        pages = data.draw(st.permutations([*owned, free]))
        with pytest.raises(PageError, match=f"page {free} was released more often than taken"):
            self.pool.release(pages)
        with pytest.raises(PageError, match=f"page {free} is free"):
            self.pool.retain(pages)

    @invariant()
    def conservation(self) -> None:
        self.pool.check(self.owners)
        assert self.pool.num_used == len(self.counts())
        assert self.pool.num_free + self.pool.num_used == PAGES
        assert self.pool.peak_used >= self.pool.num_used


TestPoolMachine = PoolMachine.TestCase


def test_used_pages_are_used_again_first_and_in_order() -> None:
    pool = PagePool(SMALL, PAGES)
    assert pool.alloc(3) == [0, 1, 2]
    assert pool.alloc(2) == [3, 4]
    assert pool.release([0, 1, 2]) == [0, 1, 2]
    assert pool.alloc(4) == [0, 1, 2, 5]
    assert pool.peak_used == 6


def test_a_page_of_two_owners_is_freed_by_the_second() -> None:
    pool = PagePool(SMALL, PAGES)
    pages = pool.alloc(2)
    assert pages is not None
    pool.retain(pages[:1])
    assert pool.count(pages[0]) == 2
    assert pool.release(pages) == pages[1:]
    assert pool.release(pages[:1]) == pages[:1]


@pytest.mark.parametrize("page", [-1, PAGES])
def test_a_page_that_is_not_there(page: int) -> None:
    pool = PagePool(SMALL, PAGES)
    for touch in (pool.page, pool.count):
        with pytest.raises(PageError, match=f"page {page} is not one of the pool's {PAGES}"):
            touch(page)
    for change in (pool.retain, pool.release):
        with pytest.raises(PageError, match=f"page {page} is not one of the pool's {PAGES}"):
            change([page])
    pool.check([])


def test_check_sees_a_page_without_owner_and_one_with_two() -> None:
    pool = PagePool(SMALL, PAGES)
    pages = pool.alloc(2)
    assert pages is not None
    pool.check([pages])
    with pytest.raises(PageError, match="page 0 has a count of 1 and 0 owners"):
        pool.check([[1]])
    with pytest.raises(PageError, match="page 1 has a count of 1 and 2 owners"):
        pool.check([pages, [1]])


def test_a_page_is_one_run_of_the_pool() -> None:
    pool = PagePool(SMALL, PAGES)
    assert pool.data.shape == (PAGES, SMALL.page_bytes)
    assert pool.data.dtype == np.uint8
    assert pool.data.flags.c_contiguous
    page = pool.page(5)
    assert page.nbytes == SMALL.page_bytes
    assert page.contiguous
    page[:4] = b"page"
    assert pool.data[5, :4].tobytes() == b"page"
    assert not pool.data[[4, 6]].any()


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_comes_with_the_first_write() -> None:
    layout = KVLayout.uniform(num_layers=30, num_kv_heads=3, head_dim=64)
    before = resident_bytes()
    pool = PagePool(layout, pages_within(layout, 1 << 30))
    assert pool.num_pages == (1 << 30) // layout.page_bytes
    assert pool.nbytes <= 1 << 30
    assert pool.data.ctypes.data % (2 << 20) == 0
    assert resident_bytes() - before < 1 << 20
    pool.data[:16] = 1
    touched = resident_bytes() - before
    assert 16 * layout.page_bytes <= touched <= 16 * layout.page_bytes + (3 << 20)
    pool.close()
    assert resident_bytes() - before < 1 << 20


def test_steady_state_allocates_nothing() -> None:
    pool = PagePool(SMALL, 600)
    kept = [pool.alloc(10) for _ in range(20)]

    def turn(index: int) -> None:
        pages = kept[index % 20]
        assert pages is not None
        pool.release(pages)
        kept[index % 20] = pool.alloc(10)

    for index in range(200):
        turn(index)
    before = sys.getallocatedblocks()
    for index in range(2000):
        turn(index)
    assert sys.getallocatedblocks() - before < 50


def test_a_pool_without_a_page() -> None:
    layout = KVLayout.uniform(num_layers=30, num_kv_heads=3, head_dim=64)
    expected = (
        r"a KV cache of 100 KiB holds no page: one takes 720 KiB \(32 tokens of 22.5 KiB\); "
        "raise --kv-cache-memory"
    )
    with pytest.raises(ConfigError, match=expected):
        pages_within(layout, 100 << 10)
    with pytest.raises(ConfigError, match="at least one page, got 0"):
        PagePool(layout, 0)


def test_more_memory_than_there_are_addresses() -> None:
    layout = KVLayout.uniform(num_layers=1000, num_kv_heads=1000, head_dim=256)
    with pytest.raises(ConfigError, match=r"the system refuses a KV cache of .* lower --kv-cache"):
        PagePool(layout, 1 << 20)
