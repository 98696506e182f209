"""Engine: takes requests on, runs steps, and answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.answer import Answer
from kvreuse.engine.answer.guide.guide import Guides
from kvreuse.engine.batch import BatchBuilder
from kvreuse.engine.bounds import checked_ids, room_for_answer
from kvreuse.engine.group import Group, make_group
from kvreuse.engine.metrics import Counters
from kvreuse.engine.prefill import PrefillRate
from kvreuse.engine.request import Request, Runner
from kvreuse.engine.scheduler import Scheduler
from kvreuse.engine.step import StepPlan
from kvreuse.errors import RequestError
from kvreuse.kv.cache import KVCache
from kvreuse.ops.batch import Float32Array, Int32Array
from kvreuse.text.explain import PartOf, explained
from kvreuse.text.tokenizer import Tokenizer


class Engine:
    """Serves many requests at once from one KV cache. Not thread-safe.

    A step asks the scheduler for a plan, lets it make room, runs the batch, commits what was
    written and takes a token for every row that samples. Pages change hands in the cache only, at
    the scheduler's word.
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

        ``max_num_batched_tokens`` rows a step and ``max_num_seqs`` seats, at most the runner's;
        there are never more seats than rows.
        """
        self.max_model_len = max_model_len
        self.counters = Counters()
        self.prefill = PrefillRate()
        self._runner = runner
        self.cache = cache
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._seed = seed
        self.guides = Guides(tokenizer, vocab_size)
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
        self._deltas: list[Delta] = []  # of a step that failed half-way, to be delivered
        self._num_added = 0
        self._taking: str | None = None  # the request whose token is being chosen
        self.suspects: tuple[str, ...] = ()
        """The requests that a step which raised, or one that was to find out, was about."""

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has something to do, or deltas to deliver."""
        return bool(self._groups or self._deltas)

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

    def add_request(
        self,
        prompt_ids: Sequence[int] | Int32Array,
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
        cache_salt: str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        part_of: PartOf | None = None,
    ) -> str:
        """Queue a prompt; returns its id (a running number unless given).

        Prefixes are shared only among requests of one ``cache_salt``. ``retention`` says how soon
        it is served and how long its pages stay; ``part_of`` tells, where pages are not shared,
        which part of a chat a character of ``prompt`` lies in. RequestError, at once, for one that
        can never be served: an empty prompt, ids that are none of the vocabulary's, more tokens
        than the context or more pages than the pool has or can pin, a form that cannot be followed.
        """
        now = time.perf_counter()
        ids = checked_ids(prompt_ids, self._vocab_size)
        if self._tokenizer is None and params.stop_texts:
            raise RequestError("stop texts need a tokenizer; use stop_token_ids")
        if cache_salt is not None and not (isinstance(cache_salt, str) and cache_salt):
            raise RequestError(f"cache_salt must be a text, and not empty, got {cache_salt!r}")
        guide = self.guides.guide(params.structured_outputs)
        pool = self.cache.pool
        max_tokens = room_for_answer(len(ids), params.max_tokens, self.max_model_len, pool)
        if request_id is None:
            request_id = self._free_id()
        if request_id in self._groups:
            raise RequestError(f"a request {request_id!r} is being served already")
        pins = self._checked_pins(ids, cache_salt) if retention.pin else frozenset()
        group = make_group(
            request_id,
            prompt,
            ids,
            params,
            max_tokens=max_tokens,
            arrival_time=now,
            cache_salt=cache_salt,
            retention=retention,
            layout=pool.layout,
        )
        group.part_of, group.guide, group.pins = part_of, guide, pins
        self._num_added += 1
        self.counters.requests += 1
        self._groups[request_id] = group
        self.scheduler.add(group.leader, group.unborn)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; returns what there is of it, None if it has ended already.

        One that ended in a step which failed, so that nobody has its last delta, has not yet.
        """
        undelivered = [delta for delta in self._deltas if delta.request_id == request_id]
        self._deltas = [delta for delta in self._deltas if delta.request_id != request_id]
        group = self._groups.get(request_id)
        if group is None:
            return undelivered[-1].output if undelivered else None
        self.counters.aborted += 1
        now = time.perf_counter()
        for request in group.unfinished:
            answer = self._answers.get(request)
            if answer is not None:
                answer.finish()
            self._close(request, group)
        return self._result(group, now)

    def step(self, among: Collection[str] = ()) -> list[Delta]:
        """Compute one batch, and return a delta for every token it gave.

        A step that raises, as where the logits are no numbers, may be tried again: nothing is lost
        by it but time. ``suspects`` then names the requests that it served. To find out which of
        them it was, a step with names (``among``) serves one request only, one of those where it
        can, and leaves it in ``suspects``.
        """
        self.suspects = ()
        self.cache.expire()
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
        deltas, self._deltas = self._deltas, []
        return deltas

    def check(self) -> None:
        """Raise PageError unless every page is free, or owned by running requests and the index."""
        self.cache.check()

    def _free_id(self) -> str:
        """A number that is no request's."""
        while str(self._num_added) in self._groups:
            self._num_added += 1
        return str(self._num_added)

    def _checked_pins(self, ids: Int32Array, salt: str | None) -> frozenset[int]:
        """The names of the pages that a pin of ``ids`` is about, beside those of who is served."""
        self.cache.expire()
        promised = frozenset[int]().union(*(group.pins for group in self._groups.values()))
        return self.cache.check_pin(ids, salt, promised)

    def _run(self, plan: StepPlan) -> None:
        """Compute ``plan``, and take a token for every row that samples."""
        if not plan.works:
            return
        for request, _, _ in plan.admitted:
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
        self._answers[request] = Answer(
            request,
            self._tokenizer,
            vocab_size=self._vocab_size,
            engine_seed=self._seed,
            guide=None if group.guide is None else group.guide.fork(),
        )

    def _take(self, logits: Float32Array) -> None:
        """Take a token for every row of ``logits``, close who is done."""
        now = time.perf_counter()
        for row, request in enumerate(self._batch.sampling):
            group = self._groups[request.group_id]
            takers = [request]
            self._taking = request.group_id
            if group.unborn and request is group.leader:
                takers += self._fork(group)
            for taker in takers:
                self._deltas.append(self._advance(taker, group, logits[row], now))
        self._taking = None

    def _fork(self, group: Group) -> list[Request]:
        """The leader has computed the prompt: its siblings, those who found seat and page."""
        siblings, group.unborn = group.unborn, []
        forked = [one for one in siblings if self.scheduler.fork(group.leader, one)]
        for sibling in forked:
            self._begin_answer(sibling, group)
        return forked

    def _advance(self, request: Request, group: Group, logits: Float32Array, now: float) -> Delta:
        """Take a token; the last one closes the request."""
        first = request.first_token_time is None
        if first:
            request.first_token_time = now
        first = first and request is group.leader
        answer = self._answers[request]
        token, text = answer.advance(logits)
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
        """The one way out, finished or aborted: its completion, the pages back, the seat free."""
        group.complete(request, self._answers.pop(request, None))
        if request in group.unborn:
            group.unborn.remove(request)
        else:
            self.scheduler.close(request)

    def _result(self, group: Group, now: float) -> RequestOutput | None:
        """The result, once all answers have ended."""
        output = group.output(now)
        if output is None:
            return None
        del self._groups[group.leader.group_id]
        return explained(output, self._tokenizer, self.prefill.seconds_per_token, group.part_of)
