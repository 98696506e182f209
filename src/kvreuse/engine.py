"""Engine: admits requests, runs steps, and gives back every page it took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from kvreuse.answer import Answer, make_output
from kvreuse.batch import BatchBuilder
from kvreuse.errors import ConfigError, RequestError
from kvreuse.kv.memory import format_size
from kvreuse.kv.pool import PagePool
from kvreuse.model.tokenizer import Tokenizer
from kvreuse.outputs import Delta, RequestOutput
from kvreuse.request import Float32Array, Int32Array, Request, Runner
from kvreuse.sampling_params import SamplingParams


class Engine:
    """Serves requests in the order they came, as many at once as seats and pages allow.

    A request is admitted when a seat is free and the pool has pages for its prompt and all that it
    may generate; it keeps them until it ends, so that nothing admitted ever waits for memory. A
    step computes one row of every sequence that decodes, then chunks of prompts with the rest of
    the token budget. Not thread-safe.

    Who owns a page: the pool while it is free, else one request, from :meth:`_admit` to
    :meth:`_close`; nothing else takes or gives back pages.
    """

    def __init__(
        self,
        runner: Runner,
        pool: PagePool,
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
        self._runner = runner
        self._pool = pool
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._seed = seed
        rows, seats = runner.max_num_batched_tokens, runner.max_num_seqs
        self._budget = min(rows, max_num_batched_tokens or rows)
        self._seats = min(seats, max_num_seqs or seats, self._budget)
        longest = min(max_model_len, pool.num_tokens)
        self._batch = BatchBuilder(
            max_num_batched_tokens=self._budget,
            max_num_seqs=self._seats,
            max_model_len=longest,
            max_pages=pool.layout.pages_for(longest),
        )
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._answers: dict[str, Answer] = {}  # of the running
        self._requests: dict[str, Request] = {}  # waiting or running
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether another step has something to do."""
        return bool(self._requests)

    @property
    def num_waiting(self) -> int:
        """Requests that have no pages yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self._running)

    def add_request(
        self,
        prompt_ids: Sequence[int] | Int32Array,
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Queue a prompt; returns its id (a running number unless given).

        RequestError, at once, for one that can never be served: an empty prompt, ids that are
        none of the vocabulary's, more tokens than the context or more pages than the pool has.
        """
        now = time.perf_counter()
        ids = self._checked_ids(prompt_ids)
        if self._tokenizer is None and params.stop_texts:
            raise RequestError("stop texts need a tokenizer; use stop_token_ids")
        max_tokens = self._room(len(ids), params)
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
        )
        self._num_added += 1
        self._requests[request_id] = request
        self._waiting.append(request)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; returns what there is of it, None if it has ended already."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        answer = self._answers.get(request_id)
        if answer is not None:
            answer.finish()
        return self._close(request, time.perf_counter())

    def step(self) -> list[Delta]:
        """Admit what fits, compute one batch, and return a delta for every token it gave."""
        self._admit()
        if not self._running:
            return []
        self._plan()
        logits = self._runner.run(self._batch.build())
        return self._finish(logits)

    def check(self) -> None:
        """Raise PageError unless every page is free or owned by one running request."""
        self._pool.check([request.pages for request in self._requests.values()])

    def _admit(self) -> None:
        """Give waiting requests a seat and pages, in order, until one does not fit."""
        while self._waiting and len(self._running) < self._seats:
            request = self._waiting[0]
            pages = self._pool.alloc(self._pool.layout.pages_for(request.num_kv_tokens))
            if pages is None:
                return
            request.open(pages, time.perf_counter())
            self._waiting.popleft()
            self._running.append(request)
            self._answers[request.request_id] = Answer(
                request, self._tokenizer, vocab_size=self._vocab_size, engine_seed=self._seed
            )

    def _plan(self) -> None:
        """Fill the batch: sequences with one token to compute, then chunks of the others."""
        batch, budget = self._batch, self._budget
        batch.clear()
        behind: list[Request] = []
        for request in self._running:
            if request.num_tokens - request.num_computed_tokens == 1:
                batch.add(request, 1)
                budget -= 1
            else:
                behind.append(request)
        for request in behind:
            if budget == 0:
                return
            rows = min(budget, request.num_tokens - request.num_computed_tokens)
            batch.add(request, rows)
            budget -= rows

    def _finish(self, logits: Float32Array) -> list[Delta]:
        """Move the cursors, take a token for every row of ``logits``, close who is done."""
        now = time.perf_counter()
        for request, rows in self._batch.work:
            request.num_computed_tokens += rows
        deltas: list[Delta] = []
        for row, request in enumerate(self._batch.sampling):
            if request.first_token_time is None:
                request.first_token_time = now
            answer = self._answers[request.request_id]
            token, text = answer.advance(logits[row])
            output = self._close(request, now) if answer.finish_reason is not None else None
            deltas.append(Delta(request.request_id, text, (token,), output))
        return deltas

    def _close(self, request: Request, now: float) -> RequestOutput:
        """The one way out, finished or aborted: the result, the pages back, the seat free."""
        answer = self._answers.pop(request.request_id, None)
        output = make_output(request, answer, self._pool.layout, now)
        del self._requests[request.request_id]
        if answer is None:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
            pages, request.pages = request.pages, []
            self._pool.release(pages)
        return output

    def _checked_ids(self, prompt_ids: Sequence[int] | Int32Array) -> Int32Array:
        """The prompt as an int32 array of its own. RequestError unless it is one of the model's."""
        try:
            ids = np.array(prompt_ids)
        except ValueError:  # lists of unequal lengths
            ids = np.empty((0, 0))
        if ids.shape == (0,):
            raise RequestError("the prompt is empty: it needs at least one token")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError("the prompt's token ids must be a list of integers")
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= self._vocab_size:
            raise RequestError(
                f"token id {least if least < 0 else most} is not in the vocabulary: "
                f"ids go from 0 to {self._vocab_size - 1}"
            )
        return ids.astype(np.int32)

    def _room(self, num_prompt: int, params: SamplingParams) -> int:
        """Tokens that a prompt's answer may have. RequestError if the prompt can never fit.

        An answer ends at the context's end; one without ``max_tokens`` also at the pool's.
        """
        if num_prompt >= self.max_model_len:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, but prompt and answer together may have "
                f"{self.max_model_len}: shorten it or raise --max-model-len"
            )
        room = self.max_model_len - num_prompt
        layout, pool = self._pool.layout, self._pool
        if params.max_tokens is None:
            # At least one token, so that a prompt which does not fit is refused below.
            room = max(1, min(room, pool.num_tokens - num_prompt + 1))
        else:
            room = min(room, params.max_tokens)
        needed = layout.pages_for(num_prompt + room - 1)
        if needed > pool.num_pages:
            answer = f" and the {room} it may generate" if room > 1 else ""
            raise RequestError(
                f"the prompt's {num_prompt} tokens{answer} need {needed} pages of "
                f"{layout.page_size}, but the KV cache has {pool.num_pages} "
                f"({format_size(pool.nbytes)} at {format_size(layout.bytes_per_token)} a token): "
                "raise --kv-cache-memory"
            )
        return room


def check_pool(pool: PagePool, max_model_len: int) -> None:
    """ConfigError if one sequence of ``max_model_len`` tokens does not fit ``pool``."""
    layout = pool.layout
    needed = layout.pages_for(max_model_len)
    if needed > pool.num_pages:
        raise ConfigError(
            f"--max-model-len {max_model_len} needs {needed} pages "
            f"({format_size(needed * layout.page_bytes)}), but the KV cache has {pool.num_pages} "
            f"({format_size(pool.nbytes)}): raise --kv-cache-memory or lower --max-model-len"
        )
