"""Engine: takes requests on, runs steps, and answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvreuse.answer import Answer, make_output
from kvreuse.batch import BatchBuilder
from kvreuse.bounds import checked_ids, room_for_answer
from kvreuse.errors import RequestError
from kvreuse.kv.cache import KVCache
from kvreuse.metrics import Counters
from kvreuse.model.tokenizer import Tokenizer
from kvreuse.outputs import Delta, RequestOutput
from kvreuse.request import Float32Array, Int32Array, Request, Runner
from kvreuse.sampling_params import SamplingParams
from kvreuse.scheduler import Scheduler, StepPlan


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
        self._runner = runner
        self.cache = cache
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._seed = seed
        rows, seats = runner.max_num_batched_tokens, runner.max_num_seqs
        budget = min(rows, max_num_batched_tokens or rows)
        seats = min(seats, max_num_seqs or seats, budget)
        self._scheduler = Scheduler(
            cache, max_num_batched_tokens=budget, max_num_seqs=seats, counters=self.counters
        )
        self._batch = BatchBuilder(
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            max_model_len=max_model_len,
            page_size=cache.page_size,
        )
        self._answers: dict[str, Answer] = {}  # of requests that were admitted
        self._requests: dict[str, Request] = {}  # waiting or running
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has something to do."""
        return bool(self._requests)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no pages."""
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self._scheduler.running)

    def add_request(
        self,
        prompt_ids: Sequence[int] | Int32Array,
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
        cache_salt: str | None = None,
    ) -> str:
        """Queue a prompt; returns its id (a running number unless given).

        Prefixes are shared only among requests of one ``cache_salt``. RequestError, at once, for
        one that can never be served: an empty prompt, ids that are none of the vocabulary's, more
        tokens than the context or more pages than the pool has.
        """
        now = time.perf_counter()
        ids = checked_ids(prompt_ids, self._vocab_size)
        if self._tokenizer is None and params.stop_texts:
            raise RequestError("stop texts need a tokenizer; use stop_token_ids")
        if cache_salt is not None and not (isinstance(cache_salt, str) and cache_salt):
            raise RequestError(f"cache_salt must be a text, and not empty, got {cache_salt!r}")
        pool = self.cache.pool
        max_tokens = room_for_answer(len(ids), params.max_tokens, self.max_model_len, pool)
        if request_id is None:
            request_id = str(self._num_added)
        if request_id in self._requests:
            raise RequestError(f"a request {request_id!r} is being served already")
        request = Request(
            request_id,
            prompt,
            prompt_ids=ids,
            params=params,
            max_tokens=max_tokens,
            arrival_time=now,
            cache_salt=cache_salt,
        )
        self._num_added += 1
        self.counters.requests += 1
        self._requests[request_id] = request
        self._scheduler.add(request)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; returns what there is of it, None if it has ended already."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        answer = self._answers.get(request_id)
        if answer is not None:
            answer.finish()
        self.counters.aborted += 1
        return self._close(request, time.perf_counter())

    def step(self) -> list[Delta]:
        """Compute one batch, and return a delta for every token it gave."""
        plan = self._scheduler.plan()
        if plan is None:
            return []
        plan = self._scheduler.begin(plan)
        if not plan.works:
            return []
        self._greet(plan)
        batch = self._batch
        batch.clear()
        for request, rows in plan.works:
            batch.add(request, rows)
        logits = self._runner.run(batch.build(plan.copies))
        self._scheduler.finish(plan)
        return self._take(logits)

    def check(self) -> None:
        """Raise PageError unless every page is free, or owned by running requests and the index."""
        self.cache.check()

    def _greet(self, plan: StepPlan) -> None:
        """Begin the answers of requests that were admitted for the first time."""
        for request, _, _ in plan.admitted:
            if request.first_scheduled_time is None:
                request.first_scheduled_time = time.perf_counter()
                self._answers[request.request_id] = Answer(
                    request, self._tokenizer, vocab_size=self._vocab_size, engine_seed=self._seed
                )

    def _take(self, logits: Float32Array) -> list[Delta]:
        """Take a token for every row of ``logits``, close who is done."""
        now = time.perf_counter()
        counters = self.counters
        counters.steps += 1
        counters.computed_tokens += self._batch.num_rows
        counters.generated_tokens += len(logits)
        deltas: list[Delta] = []
        for row, request in enumerate(self._batch.sampling):
            if request.first_token_time is None:
                request.first_token_time = now
            answer = self._answers[request.request_id]
            token, text = answer.advance(logits[row])
            output = None
            if answer.finish_reason is not None:
                counters.finished += 1
                output = self._close(request, now)
            deltas.append(Delta(request.request_id, text, (token,), output))
        return deltas

    def _close(self, request: Request, now: float) -> RequestOutput:
        """The one way out, finished or aborted: the result, the pages back, the seat free."""
        answer = self._answers.pop(request.request_id, None)
        output = make_output(request, answer, self.cache.pool.layout, now)
        del self._requests[request.request_id]
        self._scheduler.close(request)
        return output
