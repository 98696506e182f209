"""Engine: accepts requests, runs steps, and returns the tokens of the answers."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from kvreuse.api.ask import Ask, Sink
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.answer.answer import Answer, Answering
from kvreuse.engine.answer.guide.guide import Guides
from kvreuse.engine.batch import BatchBuilder
from kvreuse.engine.bounds import checked_ids, room_for_answer
from kvreuse.engine.exclusive import Exclusive
from kvreuse.engine.group import Group
from kvreuse.engine.metrics import Counters, PrefillRate
from kvreuse.engine.request import Request
from kvreuse.engine.scheduler import Scheduler
from kvreuse.engine.step import StepPlan
from kvreuse.errors import EngineUseError, RequestError
from kvreuse.kv.cache import KVCache
from kvreuse.ops.batch import BatchInput, Float32Array, Int32Array
from kvreuse.text.explain import readable
from kvreuse.text.tokenizer import Tokenizer


class Runner(Protocol):
    """Runs the forward pass of a model over the pages of a pool."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Rows that one batch may have."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences that one batch may have."""

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far."""

    def run(self, batch: BatchInput) -> Float32Array:
        """float32[S, vocab]: the logits of ``sample_rows``, valid until the next run."""


class Handle:
    """A request that an engine has accepted."""

    __slots__ = ("_engine", "request_id")

    def __init__(self, engine: Engine, request_id: str) -> None:
        self.request_id = request_id
        self._engine = engine

    def abort(self) -> RequestOutput | None:
        """End the request now; returns its partial result, or None if it had ended already.

        If it ended in a step that failed before its last delta was delivered, returns its result.
        """
        return self._engine.abort(self.request_id)


class Engine:
    """Serves many requests at once from one KV cache. Not thread-safe.

    A step gets a plan from the scheduler, lets it reserve pages, runs the batch, commits what was
    written and samples a token for every request computed to its end. Only the cache changes the
    owners of pages, and only the scheduler tells it to.
    """

    def __init__(
        self,
        runner: Runner,
        cache: KVCache,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        seed: int = 0,
    ) -> None:
        """``tokenizer`` None: token ids in, token ids out.

        ``max_num_batched_tokens`` and ``max_num_seqs`` bound the rows and the running requests of
        a step. Both are cut to the runner's limits, and the latter to the former.
        """
        self.max_model_len = max_model_len
        self.counters = Counters()
        self.prefill = PrefillRate()
        self.cache = cache
        self.guides = Guides(tokenizer, vocab_size)
        self._runner = runner
        self._tokenizer = tokenizer
        self._answering = Answering(tokenizer, vocab_size, seed)
        rows, seats = runner.max_num_batched_tokens, runner.max_num_seqs
        budget = min(rows, max_num_batched_tokens or rows)
        seats = min(seats, max_num_seqs or seats, budget)
        self.scheduler = Scheduler(
            cache, max_num_batched_tokens=budget, max_num_seqs=seats, counters=self.counters
        )
        self._batch = BatchBuilder(
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            max_model_len=min(max_model_len, cache.pool.num_tokens),
            page_size=cache.page_size,
        )
        self._groups: dict[str, Group] = {}  # by request id
        self._answers: dict[Request, Answer] = {}  # of requests that were admitted
        self._outbox: deque[tuple[Group, Delta]] = deque()  # not yet delivered
        self._num_added = 0
        self._taking: str | None = None  # the group whose token is being sampled
        self._stepping = False
        self.exclusive = Exclusive()
        """The lock that ``submit``, ``abort`` and ``step`` take."""
        self.suspects: tuple[str, ...] = ()
        """The ids of the requests in the last step, if it raised or was called with ``among``."""

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has requests to compute, or deltas to deliver."""
        return bool(self._groups or self._outbox)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no pages."""
        return len(self.scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self.scheduler.running)

    @property
    def sampling(self) -> Sequence[Request]:
        """The requests that got a token in the last step, in the order of its logits."""
        return self._batch.sampling

    def submit(self, ask: Ask, sink: Sink | None = None) -> Handle:
        """Queue a prompt; ``sink`` gets its deltas, each in the step that made it.

        RequestError, at once, for a request that can never be served: an empty prompt, ids outside
        the vocabulary, more tokens than the context or more pages than the pool has or can pin, a
        structured output that cannot be followed, an id that is in use. EngineUseError, as from
        ``step`` and ``abort``, while another thread uses the engine, or in a forked process.
        """
        with self.exclusive:
            return self._submit(ask, sink)

    def _submit(self, ask: Ask, sink: Sink | None) -> Handle:
        now = time.perf_counter()
        ids = checked_ids(ask.token_ids, self._answering.vocab_size)
        if self._tokenizer is None and ask.params.stop_texts:
            raise RequestError("stop texts need a tokenizer; use stop_token_ids")
        salt = ask.cache_salt
        if salt is not None and not (isinstance(salt, str) and salt):
            raise RequestError(f"cache_salt must be a text, and not empty, got {salt!r}")
        guide = self.guides.guide(ask.params.structured_outputs)
        pool, request_id = self.cache.pool, ask.request_id
        max_tokens = room_for_answer(len(ids), ask.params.max_tokens, self.max_model_len, pool)
        if request_id is None:
            request_id = self._free_id()
        if request_id in self._groups:
            raise RequestError(f"the request id {request_id!r} is in use: choose another")
        pins = self._checked_pins(ids, salt) if ask.retention.pin else frozenset()
        group = Group(ask, request_id, ids, max_tokens, sink)
        group.arrival_time, group.guide, group.pins = now, guide, pins
        self._num_added += 1
        self.counters.requests += 1
        self._groups[request_id] = group
        self.scheduler.add(group.leader, group.unforked)
        return Handle(self, request_id)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now, as :meth:`Handle.abort`."""
        with self.exclusive:
            return self._abort(request_id)

    def _abort(self, request_id: str) -> RequestOutput | None:
        undelivered = [item for item in self._outbox if item[1].request_id == request_id]
        if undelivered:
            left = [item for item in self._outbox if item[1].request_id != request_id]
            self._outbox = deque(left)
        group = self._groups.get(request_id)
        if group is None:
            return undelivered[-1][1].output if undelivered else None
        self.counters.aborted += 1
        now = time.perf_counter()
        for request in group.unfinished:
            answer = self._answers.get(request)
            if answer is not None:
                answer.finish()
            self._close(request, group)
        return self._result(group, now)

    def step(self, among: Collection[str] = ()) -> list[Delta]:
        """Compute one batch, deliver a delta for every token sampled, and return these deltas.

        A step that raises, for example on NaN logits, may be repeated: only time is lost.
        ``suspects`` then has the ids of the requests in it. To find the one that fails, call
        ``step`` with these ids (``among``): it serves one request only, one of them if possible,
        and leaves its id in ``suspects``. If a sink raises, the remaining deltas are delivered
        with the next step. A sink may call ``submit`` and ``abort``, but not ``step``.
        """
        with self.exclusive:
            if self._stepping:
                raise EngineUseError("a step is under way: wait until it has ended")
            self._stepping = True
            try:
                return self._step(among)
            finally:
                self._stepping = False

    def _step(self, among: Collection[str]) -> list[Delta]:
        self.suspects = ()
        self.cache.promises.expire()
        plan = self.scheduler.plan()
        if plan is not None:
            if among:
                plan = plan.alone(among)
                self.suspects = plan.names
            try:
                plan = self.scheduler.begin(plan)
                self._run(plan)
            except BaseException:
                self.suspects = plan.names if self._taking is None else (self._taking,)
                self._taking = None
                self.scheduler.retract()
                raise
        return self._deliver()

    def check(self) -> None:
        """Raise PageError unless the cache's conservation law holds (:meth:`KVCache.check`)."""
        self.cache.check()

    def _deliver(self) -> list[Delta]:
        """Give the deltas of the outbox to their sinks, and return them."""
        delivered = []
        while self._outbox:
            group, delta = self._outbox.popleft()
            delivered.append(delta)
            if group.sink is not None:
                group.sink(delta)
        return delivered

    def _free_id(self) -> str:
        """A number, as text, that is not the id of any request."""
        while str(self._num_added) in self._groups:
            self._num_added += 1
        return str(self._num_added)

    def _checked_pins(self, ids: Int32Array, salt: str | None) -> frozenset[int]:
        """The names of the pages to pin; RequestError above the quota, promised pins included."""
        if not self.cache.enabled:
            raise RequestError("pin needs prefix caching: start without --no-enable-prefix-caching")
        self.cache.promises.expire()
        promised = frozenset[int]().union(*(group.pins for group in self._groups.values()))
        return self.cache.promises.check_pin(ids, salt, promised)

    def _run(self, plan: StepPlan) -> None:
        """Compute ``plan``, and sample a token for every request computed to its end."""
        if not plan.works:
            return
        for admission in plan.admitted:
            request = admission.request
            if request not in self._answers:
                request.first_scheduled_time = time.perf_counter()
                self._begin_answer(request, self._groups[request.group_id])
        batch, counters = self._batch, self.counters
        batch.clear()
        for request, rows in plan.works:
            batch.add(request, rows)
        start = time.perf_counter()
        logits = self._runner.run(batch.build(plan.copies))
        if batch.num_rows > len(plan.works):
            prompt_rows = sum(rows for _, rows in plan.works if rows > 1)
            self.prefill.observe(prompt_rows, batch.num_rows, time.perf_counter() - start)
        self.scheduler.finish(plan)
        counters.steps += 1
        counters.computed_tokens += batch.num_rows
        counters.page_bytes_read = self._runner.page_bytes_read
        self._take(logits)

    def _begin_answer(self, request: Request, group: Group) -> None:
        guide = None if group.guide is None else group.guide.fork()
        self._answers[request] = Answer(request, self._answering, guide)

    def _take(self, logits: Float32Array) -> None:
        """Sample a token from every row of ``logits``, and close the requests that end with it."""
        now = time.perf_counter()
        for row, request in enumerate(self._batch.sampling):
            group = self._groups[request.group_id]
            takers = [request]
            self._taking = request.group_id
            if group.unforked and request is group.leader:
                takers += self._fork(group)
            for taker in takers:
                self._outbox.append((group, self._advance(taker, group, logits[row], now)))
        self._taking = None

    def _fork(self, group: Group) -> list[Request]:
        """Fork the leader, which has computed the prompt; returns the siblings that now run."""
        siblings, group.unforked = group.unforked, []
        forked = [one for one in siblings if self.scheduler.fork(group.leader, one)]
        for sibling in forked:
            self._begin_answer(sibling, group)
        return forked

    def _advance(self, request: Request, group: Group, logits: Float32Array, now: float) -> Delta:
        """Sample a token; close the request if it ends with it."""
        answer = self._answers[request]
        token, text = answer.advance(logits)
        first = request.first_token_time is None
        if first:
            request.first_token_time = now
        first = first and request is group.leader
        self.counters.generated_tokens += 1
        output = None
        if answer.finish_reason is not None:
            self._close(request, group)
            output = self._result(group, now)
            self.counters.finished += output is not None
        return Delta(
            request.group_id,
            text,
            (token,),
            output,
            request.index,
            answer.finish_reason,
            logprobs=request.logprobs[-1] if request.logprobs else None,
            num_cached_tokens=request.num_cached_tokens if first else None,
            miss=request.miss if first else None,
        )

    def _close(self, request: Request, group: Group) -> None:
        """Finish or abort ``request``: record its completion, give back its pages and its seat."""
        layout = self.cache.pool.layout
        group.complete(request, self._answers.pop(request, None), layout)
        if request in group.unforked:
            group.unforked.remove(request)
        else:
            self.scheduler.close(request)

    def _result(self, group: Group, now: float) -> RequestOutput | None:
        """The result, or None until all answers of ``group`` have ended."""
        output = group.output(now, self.cache.pool.layout, self.prefill.seconds_per_token)
        if output is not None:
            del self._groups[group.group_id]
            if output.miss is not None and self._tokenizer is not None:
                ask, ids = group.ask, output.prompt_token_ids
                miss = readable(output.miss, ids, self._tokenizer, ask.text, ask.part_of)
                output = dataclasses.replace(output, miss=miss)
        return output
