"""Scheduler: decides which tokens of which requests the next step computes."""

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
"""Waiting requests that one plan examines, so that its cost does not grow with the queue."""


class Scheduler:
    """Continuous batching with one token budget a step: decodes, prefill chunks, then admissions.

    ``plan`` decides and changes nothing; ``begin`` opens sequences, reserves pages and preempts;
    after the runner has run, ``finish`` commits. A request may preempt only requests that arrived
    after it, so the oldest one always progresses and every request ends. A preempted request keeps
    its tokens and is queued again; its pages stay in the prefix cache, so that it resumes where it
    was unless they were evicted. A *seat* is one of ``max_num_seqs`` places for running requests.
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
        self._copies: dict[Request, Sequence[Copy]] = {}  # of forked requests, for the next step
        self._num_arrived = 0

    @property
    def running(self) -> Sequence[Request]:
        """The requests that hold pages, the oldest first."""
        return self._running

    @property
    def waiting(self) -> WaitingQueue:
        """The requests that hold no pages."""
        return self._waiting

    def add(self, request: Request, siblings: Sequence[Request] = ()) -> None:
        """Queue a request that has just arrived; ``siblings`` will be forked from it."""
        for one in (request, *siblings):
            one.arrival = self._num_arrived
            self._num_arrived += 1
        self._queue(request)

    def fork(self, request: Request, sibling: Request) -> bool:
        """Start ``sibling``, which has the same tokens, where ``request`` is.

        False: there is no free seat or page, and ``sibling`` was queued instead.
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
        """Remove a request that ended or was aborted; its pages become free, or evictable."""
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
        """Reserve pages for ``plan``; returns the part of it for which there was room."""
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
        """Commit the tokens of ``plan``, which the runner has written."""
        for request, rows in plan.works:
            assert request.kv is not None
            self._cache.commit(request.kv, request.ids, rows)
            request.num_computed_tokens += rows

    def retract(self) -> None:
        """A step failed: put all running requests back into the queue.

        So no request relies on copies that may not have been made, or waits for a token that will
        not be sampled. Pages committed before stay in the prefix cache.
        """
        for request in list(self._running):
            self._leave(request)
            self._queue(request)

    def _plan_admission(self, budget: Budget, behind: list[Request]) -> list[Admission]:
        """The waiting requests to admit; ``behind`` are the running ones that do not decode yet."""
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
                break  # no later request may take the pages it waits for
            rows = budget.spend(request.num_tokens - hit.tokens)
            admitted.append(Admission(request, rows, hit))
            leaders.append((request, hit.tokens))
            seats -= 1
            available -= hit.pages + self._growth(request, -(-request.num_tokens // size))
        return admitted

    def _follows(self, request: Request, leaders: list[tuple[Request, int]]) -> bool:
        """Whether ``request`` should wait for a page that another request will fill.

        ``leaders`` are (request, tokens computed). ``request`` waits until all full pages that both
        prompts share are computed, or the leader ends; then it reuses the pages computed so far.
        """
        size = self._cache.page_size
        return self._cache.enabled and any(
            leader.ask.cache_salt == request.ask.cache_salt
            and leader.shared_prefix(request) // size * size > computed
            for leader, computed in leaders
        )

    def _growth(self, request: Request, pages: int) -> int:
        """Pages beyond ``pages`` to hold back: for its known tokens, and one to grow into."""
        size = self._cache.page_size
        tokens = min(request.num_tokens + size, request.num_kv_tokens)
        return max(0, -(-tokens // size) - pages)

    def _has_room(self, plan: StepPlan) -> bool:
        """Whether all requests of ``plan`` have their pages reserved, as in most steps."""
        for request, rows in plan.works:
            kv = request.kv
            if kv is None or kv.written + rows > kv.reserved:
                return False
        return True

    def _make_room(self, request: Request, rows: int) -> tuple[int, bool]:
        """Reserve room for up to ``rows`` tokens, preempting younger requests if there is none.

        Returns how many were granted, and whether any request was preempted.
        """
        preempted = False
        while request.kv is not None:
            granted = self._reserve(request, rows)
            if granted:
                return granted, preempted
            youngest = self._running[-1]
            if youngest is request:
                if request is self._running[0] and self._cache.promises.give_up(1):
                    continue  # no request is left to preempt, so pins give way
                return 0, preempted  # it keeps its pages and waits for older requests
            preempted = True
            self._counters.preemptions += 1
            youngest.num_preemptions += 1
            self._leave(youngest)
            self._queue(youngest)
        return 0, preempted  # an older request preempted it in this step

    def _reserve(self, request: Request, rows: int) -> int:
        """Reserve room for up to ``rows`` more tokens; returns for how many there is room."""
        kv = request.kv
        assert kv is not None
        room = kv.reserved - kv.written
        if rows <= room:
            return rows
        most = room + self._cache.num_available * self._cache.page_size
        rows = min(rows, most)
        return rows if rows and self._cache.reserve(kv, rows) else room

    def _admit(self, admission: Admission, copies: list[Copy]) -> int:
        """Open a request, reserve room for its rows, return how many; 0: it stays in the queue."""
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
        """Close a running request; None: it will be queued again, so only its priority counts."""
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
        """The cache's hit for ``request`` now; looked up again only if the cache has changed."""
        hit = self._cache.lookup(request.ids, request.ask.cache_salt, request.hit)
        request.hit = hit
        return hit
