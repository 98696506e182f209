"""KVCache in every order of calls, compared with an oracle; then each guarantee by itself."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvreuse.api.miss import Reason
from kvreuse.kv.cache import KVCache
from kvreuse.kv.keys import Hash, sha256
from kvreuse.kv.pool import PageError

from .cache_machine import CheckedCache, Started, small_pool
from .cache_oracle import PAGE, Tokens

SALTS = st.sampled_from((None, None, None, "", "tenant"))
FEW_TOKENS = st.lists(st.integers(0, 1), max_size=9)


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow, fork and close; more of them than there are pages."""

    digest: Hash = staticmethod(sha256)
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.checked = CheckedCache(10, self.digest, self.policy)
        self.known: list[Tokens] = [(0, 1, 0, 0, 1)]

    def prompt(self, data: st.DataObject) -> Tokens:
        """Some tokens, mostly the start of known ones and then others."""
        known = data.draw(st.sampled_from(self.known))
        kept = data.draw(st.integers(0, len(known)))
        return (*known[:kept], *data.draw(FEW_TOKENS)) or (1,)

    def draw(self, data: st.DataObject) -> Started:
        return data.draw(st.sampled_from(self.checked.running))

    def write(self, started: Started, n: int, more: list[int]) -> None:
        """Write ``n`` tokens, at most what fits: those known, then ``more`` that are generated."""
        run = started.run
        if run.written + n > len(run.ids):
            run.ids += more
        self.checked.reserve(started, min(n, len(run.ids) - run.written))
        room = min(len(run.ids), started.seq.reserved) - run.written
        self.checked.commit(started, min(n, room))
        self.known.append(tuple(run.ids))

    @rule(data=st.data(), salt=SALTS)
    def open(self, data: st.DataObject, salt: str | None) -> None:
        self.checked.open(self.prompt(data), salt)

    @rule(data=st.data(), salt=SALTS, more=FEW_TOKENS)
    def serve(self, data: st.DataObject, salt: str | None, more: list[int]) -> None:
        """Open, grow and close a sequence, as most sequences do."""
        started = self.checked.open(self.prompt(data), salt)
        self.checked.check()
        self.write(started, 99, more)
        self.checked.check()
        self.checked.close(started)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data(), n=st.integers(0, 9) | st.just(99), more=FEW_TOKENS)
    def compute(self, data: st.DataObject, n: int, more: list[int]) -> None:
        self.write(self.draw(data), n, more)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data(), n=st.integers(0, 20))
    def reserve(self, data: st.DataObject, n: int) -> None:
        self.checked.reserve(self.draw(data), n)

    @precondition(lambda self: any(not s.copies for s in self.checked.running))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        ready = [started for started in self.checked.running if not started.copies]
        self.checked.fork(data.draw(st.sampled_from(ready)))

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.checked.close(self.draw(data))

    @rule(data=st.data(), salt=SALTS)
    def look_up(self, data: st.DataObject, salt: str | None) -> None:
        self.checked.look_up(self.prompt(data), salt, reasons=self.digest is sha256)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def write_too_much(self, data: st.DataObject) -> None:
        started = self.draw(data)
        room = min(started.seq.reserved, len(started.run.ids)) - started.run.written
        for n in (-1, room + 1):
            with pytest.raises(PageError, match="tokens written of"):
                self.checked.cache.commit(started.seq, started.run.ids, n)

    @invariant()
    def conservation(self) -> None:
        self.checked.check()

    def teardown(self) -> None:
        for started in list(self.checked.running):
            self.checked.close(started)
            self.checked.check()
        assert self.checked.cache.num_available == 10


class DensityMachine(CacheMachine):
    """The same with the learning policy."""

    policy = "hit-density"


class CollidingMachine(CacheMachine):
    """The same with keys that are all equal."""

    digest: Hash = staticmethod(lambda data: bytes(32))


TestCacheMachine = CacheMachine.TestCase
TestDensityMachine = DensityMachine.TestCase
TestCollidingMachine = CollidingMachine.TestCase
TestCacheMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDensityMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCollidingMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def served(checked: CheckedCache, ids: Tokens, salt: str | None = None) -> Started:
    """A sequence that has computed all of ``ids`` and still runs."""
    started = checked.open(ids, salt)
    checked.check()
    assert checked.reserve(started, len(ids) - started.seq.written)
    checked.check()
    checked.commit(started, len(ids) - started.seq.written)
    checked.check()
    return started


def finished(checked: CheckedCache, ids: Tokens, salt: str | None = None) -> None:
    checked.close(served(checked, ids, salt))
    checked.check()


@pytest.mark.parametrize("parting", range(1, 12))
def test_a_hit_is_exact_to_the_token(parting: int) -> None:
    checked = CheckedCache(10)
    finished(checked, tuple(range(12)))
    started = checked.open((*range(parting), 99, 98), None)
    assert started.seq.written == parting
    assert [rows for _, _, rows in started.copies] == [parting % PAGE] * (parting % PAGE > 0)
    assert checked.cache.lookup((*range(parting), 99, 98)).tokens == parting


@pytest.mark.parametrize("length", range(1, 14))
def test_the_same_prompt_again_computes_one_token_and_keeps_no_page_more(length: int) -> None:
    checked = CheckedCache(10)
    ids = tuple(range(length))
    finished(checked, ids)
    before = checked.cache.pool.num_free
    started = served(checked, ids)
    assert checked.cache.num_merged == (length % PAGE == 0)
    assert checked.cache.pool.num_free == before - (length % PAGE > 0)
    checked.close(started)
    checked.check()
    assert checked.cache.pool.num_free == before


def test_a_conversation_is_reused_whole() -> None:
    checked = CheckedCache(10)
    first = served(checked, (1, 2, 3, 4, 5, 6))
    first.run.ids += [7, 8, 9, 10]
    assert checked.reserve(first, 4)
    checked.commit(first, 3)  # the last token that was sampled is in no page
    checked.close(first)
    assert checked.cache.lookup((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)).tokens == 9


def test_pages_of_running_sequences_are_shared_and_their_unfilled_ones_are_not() -> None:
    checked = CheckedCache(10)
    ids = tuple(range(11))
    leader = checked.open(ids, None)
    for written in range(1, 12):
        assert checked.reserve(leader, 1)
        checked.commit(leader, 1)
        assert checked.cache.lookup(ids).tokens == min(written // PAGE * PAGE, 10)
    follower = checked.open(ids, None)
    assert follower.seq.pages == leader.seq.pages[:2]


def test_two_that_computed_the_same_keep_one_copy() -> None:
    checked = CheckedCache(10)
    ids = tuple(range(8))
    one, other = checked.open(ids, None), checked.open(ids, None)
    for started in (one, other):
        assert checked.reserve(started, 8)
    version = other.seq.version
    for started in (one, other):
        checked.commit(started, 8)
        checked.check()
    assert one.seq.pages == other.seq.pages
    assert other.seq.version > version
    assert checked.cache.num_merged == 2
    assert checked.cache.pool.num_free == 8


def test_a_source_outlives_whoever_had_it() -> None:
    checked = CheckedCache(4)
    parent = served(checked, (1, 2))
    child = checked.fork(parent)
    assert child is not None
    checked.close(parent)
    checked.check()
    assert checked.reserve(child, 6) is True
    assert checked.cache.num_available == 1
    assert checked.reserve(child, 15) is False
    checked.check()
    child.run.ids += [3]
    checked.commit(child, 1)
    checked.check()
    assert checked.cache.num_evictable == 1


def test_without_a_page_for_them_shared_rows_are_computed_again() -> None:
    checked = CheckedCache(2)
    finished(checked, (1, 2, 3, 4, 5, 6))
    started = checked.open((1, 2, 3, 4, 5, 7), None)
    assert started.seq.written == PAGE
    assert checked.reserve(started, 2)
    checked.check()


def test_closed_before_the_copies_were_done() -> None:
    checked = CheckedCache(10)
    finished(checked, (1, 2, 3))
    started = checked.open((1, 2, 9), None)
    with pytest.raises(PageError, match="forked before its own copies"):
        checked.cache.fork(started.seq, (1, 2, 9))
    checked.close(started)
    checked.check()
    assert checked.cache.num_evictable == 1
    for call in (checked.cache.close, lambda seq, ids: checked.cache.commit(seq, ids, 0)):
        with pytest.raises(PageError, match="has been closed"):
            call(started.seq, (1, 2, 9))


def test_a_fork_closed_before_the_copies_were_done() -> None:
    checked = CheckedCache(10)
    parent = served(checked, (1, 2, 3, 4, 5, 6))
    child = checked.fork(parent)
    assert child is not None
    checked.close(child)
    checked.check()
    assert checked.cache.lookup((1, 2, 3, 4, 5, 6, 7)).tokens == 4


def test_a_table_grows() -> None:
    checked = CheckedCache(70)
    started = checked.open(tuple(range(280)), None)
    for step in (1, 3, 40, 0, 36, 200):
        assert checked.reserve(started, step)
        checked.commit(started, step)
        checked.check()
    assert started.seq.num_pages == 70


@pytest.mark.parametrize("call", ["lookup", "open", "commit", "close"])
def test_tokens_that_are_none_change_nothing(call: str) -> None:
    checked = CheckedCache(10)
    started = checked.open(tuple(range(7)), None)
    assert checked.reserve(started, 7)
    checked.commit(started, 3)
    bad = [0, 1, 2**70, 3, 4, 5, 6]
    with pytest.raises(OverflowError):
        match call:
            case "lookup":
                checked.cache.lookup(bad)
            case "open":
                checked.cache.open(checked.cache.lookup(bad))
            case "commit":
                checked.cache.commit(started.seq, bad, 3)
            case "close":
                checked.cache.close(started.seq, bad)
    checked.check()
    checked.commit(started, 3)
    checked.close(started)
    checked.check()


def test_a_look_up_changes_nothing() -> None:
    checked = CheckedCache(4)
    for first in (1, 2, 3):
        finished(checked, (first, 5, 6, 7, 8))
    for salt in (None, "unknown"):
        checked.look_up((1, 5, 6, 7, 9), salt)
    checked.check()
    finished(checked, (4, 5, 6, 7, 8))  # look-ups did not change what it evicts
    assert checked.cache.lookup((1, 5, 6, 7, 9)).tokens == 0


def test_switched_off() -> None:
    pool = small_pool(4)
    cache = KVCache(pool, b"namespace", enable_prefix_caching=False)
    ids = tuple(range(9))
    for _ in range(3):
        hit = cache.lookup(ids)
        assert (hit.tokens, hit.pages, hit.reason) == (0, 3, Reason.DISABLED)
        seq, copies = cache.open(cache.lookup(ids))
        assert not copies
        assert cache.reserve(seq, 9)
        cache.commit(seq, ids, 9)
        cache.check()
        forked = cache.fork(seq, ids)
        assert forked is not None
        assert forked[0].pages[:2] == seq.pages[:2]
        cache.check()
        cache.close(seq, ids)
        cache.close(forked[0], ids)
        assert (cache.pool.num_free, cache.num_evictable) == (4, 0)
        cache.check()


def test_nothing_grows_with_what_was_served() -> None:
    cache = KVCache(small_pool(8), b"namespace")

    def serve(number: int) -> None:
        ids = tuple(range(number, number + 11))
        seq, _ = cache.open(cache.lookup(ids, f"salt {number}"))
        assert cache.reserve(seq, 11)
        cache.commit(seq, ids, 11)
        cache.close(seq, ids)

    for number in range(4000):  # until the interpreter's lists of spare objects are full
        serve(number)
    gc.disable()  # and nothing waits for it
    try:
        before = sys.getallocatedblocks()
        for number in range(4000, 5000):
            serve(number)
        assert sys.getallocatedblocks() - before < 100
    finally:
        gc.enable()
    cache.check()


def test_check_sees_a_page_that_is_nowhere_and_a_wrong_table() -> None:
    checked = CheckedCache(6)
    started = served(checked, tuple(range(9)))
    table = started.seq.table
    table[0], table[1] = table[1], table[0]
    with pytest.raises(PageError, match="not the index's page for its tokens"):
        checked.cache.check()
    table[0], table[1] = table[1], table[0]
    checked.cache._evictor.rest(1, int(table[1]))
    with pytest.raises(PageError, match="the idle pages are not those that only the index owns"):
        checked.cache.check()
    checked.cache._evictor.wake(1, int(table[1]))
    checked.pool.alloc(1)
    with pytest.raises(PageError, match="has a count of 1 and 0 owners"):
        checked.cache.check()
