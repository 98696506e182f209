"""Calls of a KVCache, each checked against the oracle, with tokens really lying in the pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.api.miss import Reason
from kvreuse.kv.cache import Copy, KVCache
from kvreuse.kv.hit import Hit
from kvreuse.kv.keys import Hash, sha256
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.kv.sequence import SeqKV

from .cache_oracle import PAGE, Oracle, Page, Run, Tokens

POISON = -1


class SmallPages(KVLayout):
    """Pages of four tokens, which no kernel could read, so that a few tokens fill many."""

    def __post_init__(self) -> None:
        self._add_up()


def small_pool(num_pages: int) -> PagePool:
    layout = SmallPages.uniform(num_layers=1, num_kv_heads=1, head_dim=16, page_size=PAGE)
    return PagePool(layout, num_pages)


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


class Started:
    """A sequence, its run in the oracle, and the copies that are still to be done."""

    def __init__(self, seq: SeqKV, run: Run, copies: list[Copy]) -> None:
        self.seq = seq
        self.run = run
        self.copies = copies


class CheckedCache:
    """A cache, its oracle and the rows of its pages: int32[pages, 4], a token each."""

    def __init__(self, num_pages: int, digest: Hash = sha256, policy: str = "lru") -> None:
        self.pool = small_pool(num_pages)
        self.rows: npt.NDArray[np.int32] = self.pool.data.view(np.int32)[:, :PAGE]
        self.rows[:] = POISON
        self.cache = KVCache(self.pool, b"namespace", eviction_policy=policy, digest=digest)
        self.oracle = Oracle(num_pages)
        self.running: list[Started] = []
        self.known: dict[tuple[Tokens, str | None], Hit] = {}
        self.policy = policy
        self.victims: list[int] = []
        evict = self.cache._evictor.evict

        def watched(n: int, counts: Sequence[int]) -> list[int]:
            victims = evict(n, counts)
            assert len(victims) == n
            self.victims += victims
            return victims

        self.cache._evictor.evict = watched  # type: ignore[method-assign]

    def open(self, ids: Tokens, salt: str | None) -> Started:
        """Open a sequence and check the hit."""
        oracle, available = self.oracle, self.cache.num_available
        sources, told = oracle.sources(salt, ids), self.cache.lookup(ids, salt)
        assert told.tokens == oracle.hit(salt, ids)
        full = oracle.full_pages(salt, ids)
        run = Run(salt, list(ids), full, len(full) * PAGE)
        seq, copies = self.cache.open(told)
        oracle.runs.append(run)
        if copies:
            [run.source] = [page for page in sources if page.number == copies[0][0]]
            self._check_room(1)
            self._take_fresh(seq, run, 1)
            run.written = told.tokens
        else:
            assert not sources or self._only_left(sources)
        missing = pages_for(len(ids)) - seq.num_pages
        assert bool(copies) != bool(sources) or told.pages == (
            available - self.cache.num_available + missing
        )
        return self._started(seq, run, copies)

    def fork(self, parent: Started) -> Started | None:
        """Fork and check; ``parent`` has done its copies."""
        run = parent.run
        rows = run.written - run.full
        possible = not rows or self.oracle.has_room(1)
        forked = self.cache.fork(parent.seq, run.ids)
        assert (forked is not None) == possible
        if forked is None:
            return None
        self._check_room(1 if rows else 0)
        child = Run(run.salt, list(run.ids), run.table[: run.full // PAGE], run.full)
        self.oracle.runs.append(child)
        if rows:
            child.source = run.table[run.full // PAGE]
            self._take_fresh(forked[0], child, 1)
            child.written = run.written
        return self._started(forked[0], child, forked[1])

    def reserve(self, started: Started, n: int) -> bool:
        """Reserve and check that it succeeds exactly if there are enough pages."""
        seq, run = started.seq, started.run
        missing = max(0, pages_for(run.written + n) - len(run.table))
        possible = self.oracle.has_room(missing)
        assert self.cache.reserve(seq, n) == possible
        if possible:
            self._check_room(missing)
            self._take_fresh(seq, run, missing)
        assert seq.reserved == len(run.table) * PAGE
        return possible

    def commit(self, started: Started, n: int) -> None:
        """Do the copies, write the next ``n`` tokens, commit."""
        seq, run = started.seq, started.run
        for source, page, rows in started.copies:
            self.rows[page, :rows] = self.rows[source, :rows]
        started.copies = []
        for at in range(run.written, run.written + n):
            self.rows[seq.table[at // PAGE], at % PAGE] = run.ids[at]
        self.cache.commit(seq, np.array(run.ids, dtype=np.int32), n)
        full, run.source = run.full, None
        run.written += n
        for end in range(full + PAGE, run.full + 1, PAGE):
            self.oracle.publish(run, end)
            run.announced = len(run.ids)

    def close(self, started: Started) -> None:
        """Close; rows that were never copied leave no tail."""
        self.running.remove(started)
        self.cache.close(started.seq, started.run.ids)
        self.oracle.runs.remove(started.run)
        if not started.copies:
            self.oracle.keep_tail(started.run)

    def look_up(self, ids: Tokens, salt: str | None, *, reasons: bool = True) -> Reason | None:
        """Look up and check the hit, and with ``reasons`` the miss (unless keys collide)."""
        hit = self.cache.lookup(list(ids), salt)
        known = self.cache.lookup(list(ids), salt, self.known.get((ids, salt)))
        assert dataclasses.replace(known, version=hit.version) == hit
        self.known[ids, salt] = hit
        assert hit.tokens == self.oracle.hit(salt, ids)
        if not reasons:
            return hit.reason
        assert hit.reason == self.oracle.reason(salt, ids)
        if hit.miss is not None:
            assert hit.miss.index == hit.tokens
            assert (hit.miss.field == "cache_salt") == (hit.reason is Reason.NAMESPACE)
            assert bool(hit.miss.cached) == (hit.reason is Reason.DIVERGED)
            self._check_parting(ids, salt, hit.tokens, hit.miss.cached)
        return hit.reason

    def check(self) -> None:
        """Check the conservation law, the oracle's counts, and the place of every token."""
        self.oracle.tick()
        self.cache.check()
        assert self.cache.pool.num_free == self.oracle.num_free()
        assert self.cache.num_evictable == self.oracle.num_idle()
        live = {page.number for page in self.oracle.live()}
        self.rows[[page for page in range(len(self.rows)) if page not in live]] = POISON
        for started in self.running:
            seq, run = started.seq, started.run
            assert seq.pages == [page.number for page in run.table]
            assert seq.written == run.written
            written = run.full if started.copies else run.written
            assert self.rows[seq.pages].reshape(-1)[:written].tolist() == run.ids[:written]
        for (_, tokens), page in self.oracle.resident.items():
            start = (len(tokens) - 1) // PAGE * PAGE
            assert tuple(self.rows[page.number].tolist())[: len(tokens) - start] == tokens[start:]

    def _started(self, seq: SeqKV, run: Run, copies: Sequence[Copy]) -> Started:
        if copies:
            assert run.source is not None
            assert copies == [(run.source.number, run.table[-1].number, run.written % PAGE)]
        run.announced = len(run.ids)
        started = Started(seq, run, list(copies))
        self.running.append(started)
        return started

    def _check_room(self, n: int) -> None:
        """The cache made room for ``n`` pages: it evicted no more than it had to, and leaves only;
        those that rested longest where the policy says so."""
        victims, self.victims = self.victims, []
        assert len(victims) == max(0, n - self.oracle.num_free())
        for victim in victims:
            if self.policy == "lru":
                assert victim == self.oracle.longest_unused()
            self.oracle.evict(victim)

    def _take_fresh(self, seq: SeqKV, run: Run, n: int) -> None:
        """The last ``n`` pages of the table are new: they had no owner."""
        numbers = {page.number for page in self.oracle.live()}
        for number in seq.pages[seq.num_pages - n :]:
            assert number not in numbers
            numbers.add(number)
            run.table.append(Page(number))

    def _only_left(self, sources: set[Page]) -> bool:
        """Whether no page is free or evictable, except one that rows would be copied from."""
        idle = set(self.oracle.resident.values()) - self.oracle.used()
        return self.oracle.num_free() == 0 and any(idle <= {source} for source in sources)

    def _check_parting(
        self, ids: Tokens, salt: str | None, hit: int, cached: tuple[int, ...]
    ) -> None:
        """``cached`` really follows the hit in the cache, and its first token differs."""
        if cached:
            there = (*ids[:hit], *cached)
            assert cached[0] != ids[hit]
            assert any(
                tokens[: len(there)] == there[: len(tokens)]
                for tokens in self.oracle.parted(salt, ids)
            )
