"""Scheduler: which tokens of which requests the next step computes, and who has to wait."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence

from kvreuse.api.retention import Retention
from kvreuse.engine.metrics import Counters
from kvreuse.engine.request import Request
from kvreuse.engine.step import Admission, Budget, StepPlan, Work
from kvreuse.engine.waiting import WaitingQueue
from kvreuse.kv.cache import Copy, KVCache
from kvreuse.kv.hit import Hit

EXAMINED = 64
"""Waiting requests that one plan looks at, so that its cost does not grow with the queue."""


class Scheduler:
    """Shares out one token budget a step: decoding first, then chunks of prompts, then admission.

    ``plan`` decides and touches nothing; ``begin`` opens, reserves and preempts; after the runner
    has run, ``finish`` commits. Memory goes by seniority: who arrived first may preempt
    who arrived last, never the other way round, so that the oldest always gets on and every
    request comes to its end. A preempted request keeps its tokens and queues again; its pages stay
    findable, so that it resumes where it was unless somebody needed them.
    """

    def __init__(
        self, cache: KVCache, *, max_num_batched_tokens: int, max_num_seqs: int, counters: Counters
    ) -> None:
        """``max_num_batched_tokens`` is at least ``max_num_seqs``."""
        self._cache = cache
        self._budget = max_num_batched_tokens
        self._seats = max_num_seqs
        self._counters = counters
        self._running: list[Request] = []  # the oldest first
        self._waiting = WaitingQueue()
        self._copies: dict[Request, Sequence[Copy]] = {}  # of the forked, for the next step
        self._num_arrived = 0

    @property
    def running(self) -> Sequence[Request]:
        """The requests that hold pages, the oldest first."""
        return self._running

    @property
    def waiting(self) -> WaitingQueue:
        """The requests that hold none."""
        return self._waiting

    def add(self, request: Request, siblings: Sequence[Request] = ()) -> None:
        """Queue a request that has just arrived; ``siblings`` will be forked from it."""
        for one in (request, *siblings):
            one.arrival = self._num_arrived
            self._num_arrived += 1
        self._queue(request)

    def fork(self, request: Request, sibling: Request) -> bool:
        """Let ``sibling``, of the same tokens, go on from where ``request`` is.

        False: there is no seat or no page for it now, it waits as any other.
        """
        forked = None
        if len(self._running) < self._seats:
            assert request.kv is not None
            forked = self._cache.fork(request.kv, request.ids)
        if forked is None:
            self._queue(sibling)
            return False
        sibling.kv, self._copies[sibling] = forked
        sibling.num_computed_tokens = request.num_computed_tokens
        sibling.num_cached_tokens = sibling.num_prompt_tokens
        self._seat(sibling)
        return True

    def close(self, request: Request) -> None:
        """Forget a request, ended or aborted; its pages are free, or evictable, at once."""
        if request.kv is None:
            self._waiting.remove(request)
        else:
            self._leave(request, request.ask.retention)

    def plan(self) -> StepPlan | None:
        """What the next step should compute; None if there is nothing to do. Changes nothing."""
        works, behind = [], []
        for request in self._running:
            if request.num_tokens - request.num_computed_tokens == 1:
                works.append(Work(request, 1))
            else:
                behind.append(request)
        if not behind and not self._waiting:
            return StepPlan(tuple(works)) if works else None
        budget = Budget(self._budget - len(works))
        for request in behind:
            if budget.left == 0:
                break
            rows = budget.spend(request.num_tokens - request.num_computed_tokens)
            works.append(Work(request, rows))
        admitted = self._plan_admission(budget, behind)
        if not (works or admitted):
            return None
        return StepPlan(tuple(works), tuple(admitted))

    def begin(self, plan: StepPlan) -> StepPlan:
        """Make room for ``plan``; what it could not have is left out of the plan returned."""
        if not plan.admitted and not self._copies and self._has_room(plan):
            return plan
        works, preempted = [], False
        for request, rows in plan.works:
            granted, some = self._make_room(request, rows)
            preempted |= some
            if granted:
                works.append(Work(request, granted))
        copies = [copy for some in self._copies.values() for copy in some]
        admitted: list[Admission] = []
        if preempted:
            works = [work for work in works if work.request.kv is not None]
        else:
            for admission in plan.admitted:
                granted = self._admit(admission, copies)
                if granted == 0:
                    break
                admitted.append(admission)
                works.append(Work(admission.request, granted))
        if works:
            self._copies.clear()  # the step will do them
        return StepPlan(tuple(works), tuple(admitted), copies=tuple(copies))

    def finish(self, plan: StepPlan) -> None:
        """The tokens of ``plan`` are in pages."""
        for request, rows in plan.works:
            assert request.kv is not None
            self._cache.commit(request.kv, request.ids, rows)
            request.num_computed_tokens += rows

    def retract(self) -> None:
        """A step failed on its way: who runs goes back to the queue.

        So nobody relies on copies that may not have been made, or waits for a token that nobody
        will choose; what was written before is still findable.
        """
        for request in list(self._running):
            self._leave(request)
            self._queue(request)

    def _plan_admission(self, budget: Budget, behind: list[Request]) -> list[Admission]:
        """Who of the waiting gets a seat; ``behind`` are running and not yet decoding."""
        admitted: list[Admission] = []
        seats = self._seats - len(self._running)
        if budget.left == 0 or seats <= 0 or not self._waiting:
            return admitted
        size = self._cache.page_size
        available = self._cache.num_available - sum(
            self._growth(request, request.kv.num_pages)
            for request in self._running
            if request.kv is not None
        )
        leaders = [(request, request.num_computed_tokens) for request in behind]
        for examined, request in enumerate(self._waiting):
            if budget.left == 0 or seats == 0 or examined == EXAMINED:
                break
            if self._follows(request, leaders):
                continue
            hit = self._look_up(request)
            alone = not (self._running or admitted)
            if hit.pages > available and not alone:
                break  # nobody behind it may take what it waits for
            rows = budget.spend(request.num_tokens - hit.tokens)
            admitted.append(Admission(request, rows, hit))
            leaders.append((request, hit.tokens))
            seats -= 1
            available -= hit.pages + self._growth(request, -(-request.num_tokens // size))
        return admitted

    def _follows(self, request: Request, leaders: list[tuple[Request, int]]) -> bool:
        """Whether ``request`` should wait for a page that another one is about to fill.

        ``leaders`` are (request, tokens computed). Once all pages that both share are full there
        is nothing left to wait for; when a leader goes, the next in turn takes over from what it
        left.
        """
        size = self._cache.page_size
        return self._cache.enabled and any(
            leader.ask.cache_salt == request.ask.cache_salt
            and leader.shared_prefix(request) // size * size > computed
            for leader, computed in leaders
        )

    def _growth(self, request: Request, pages: int) -> int:
        """Pages beyond ``pages`` that it will ask for: for known tokens, and one to grow into."""
        size = self._cache.page_size
        tokens = min(request.num_tokens + size, request.num_kv_tokens)
        return max(0, -(-tokens // size) - pages)

    def _has_room(self, plan: StepPlan) -> bool:
        """Whether all running requests have the pages they need already, as in most steps."""
        for request, rows in plan.works:
            kv = request.kv
            if kv is None or kv.written + rows > kv.reserved:
                return False
        return True

    def _make_room(self, request: Request, rows: int) -> tuple[int, bool]:
        """Reserve up to ``rows``, preempting who is younger where there is room for none.

        Returns how many they became, and whether somebody was preempted.
        """
        preempted = False
        while request.kv is not None:
            granted = self._reserve(request, rows)
            if granted:
                return granted, preempted
            youngest = self._running[-1]
            if youngest is request:
                if request is self._running[0] and self._cache.promises.give_up(1):
                    continue  # nobody is left that could make room
                return 0, preempted  # it waits with its pages, for those who came before it
            preempted = True
            self._counters.preemptions += 1
            youngest.num_preemptions += 1
            self._leave(youngest)
            self._queue(youngest)
        return 0, preempted  # preempted by an older one in this very step

    def _reserve(self, request: Request, rows: int) -> int:
        """Reserve room for up to ``rows`` more tokens; how many it became."""
        kv = request.kv
        assert kv is not None
        room = kv.reserved - kv.written
        if rows <= room:
            return rows
        most = room + self._cache.num_available * self._cache.page_size
        rows = min(rows, most)
        return rows if rows and self._cache.reserve(kv, rows) else room

    def _admit(self, admission: Admission, copies: list[Copy]) -> int:
        """Open a request and reserve rows for it, as many as there is room for, maybe none."""
        request, rows, hit = admission
        request.kv, its_copies = self._cache.open(hit)
        written = request.kv.written
        granted = self._reserve(request, min(rows, request.num_tokens - written))
        if granted == 0:
            self._cache.close(request.kv, request.ids)
            request.kv = None
            return 0
        copies += its_copies
        self._waiting.remove(request)
        self._seat(request)
        request.num_computed_tokens = written
        if request.num_cached_tokens is None:
            miss = hit.miss
            request.num_cached_tokens, request.miss = written, miss
            self._counters.prompt_tokens += request.num_prompt_tokens
            self._counters.cached_tokens += written
            if miss is not None:
                self._counters.missed(miss.reason, request.num_prompt_tokens - 1 - written)
        return granted

    def _seat(self, request: Request) -> None:
        bisect.insort(self._running, request, key=operator.attrgetter("arrival"))

    def _leave(self, request: Request, retention: Retention | None = None) -> None:
        """Close a running request; one that will be back (None) keeps its priority only."""
        assert request.kv is not None
        self._running.remove(request)
        retention = retention or request.ask.retention.interrupted
        self._cache.close(request.kv, request.ids, retention, request.num_prompt_tokens)
        request.kv = None
        request.num_computed_tokens = 0
        self._copies.pop(request, None)

    def _queue(self, request: Request) -> None:
        self._waiting.add(request, self._look_up(request).tokens)

    def _look_up(self, request: Request) -> Hit:
        """What the cache holds of ``request`` now; matched again only if that may have changed."""
        hit = self._cache.lookup(request.ids, request.ask.cache_salt, request.hit)
        request.hit = hit
        return hit
