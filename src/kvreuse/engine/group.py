"""Group: the ``n`` answers to one prompt, and the RequestOutput made of them."""

from __future__ import annotations

import dataclasses

from kvreuse.api.ask import Ask, Sink
from kvreuse.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from kvreuse.engine.answer.answer import Answer
from kvreuse.engine.answer.guide.guide import Guide
from kvreuse.engine.request import Request
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.batch import Int32Array


class Group:
    """The requests of one ask, one for each answer.

    The first one, the leader, computes the prompt. The others are forked from it when it samples
    its first token, and are in ``unforked`` until then.
    """

    def __init__(
        self, ask: Ask, group_id: str, prompt_ids: Int32Array, max_tokens: int, sink: Sink | None
    ) -> None:
        """``prompt_ids`` are the checked tokens of ``ask``, whose deltas go to ``sink``."""
        self.ask = ask
        self.group_id = group_id
        self.sink = sink
        self.requests = [
            Request(ask, group_id, prompt_ids, max_tokens, index) for index in range(ask.params.n)
        ]
        self.unforked = self.requests[1:]
        self.arrival_time = 0.0
        self.guide: Guide | None = None
        """At the start of the structured output; every answer gets a fork. None: any text."""
        self.pins: frozenset[int] = frozenset()
        """The names of the pages that will be pinned when the request ends."""
        self._completions: dict[int, CompletionOutput] = {}
        self._pages = self._reserved = 0

    @property
    def leader(self) -> Request:
        """The request that computes the prompt."""
        return self.requests[0]

    @property
    def unfinished(self) -> list[Request]:
        """The requests that have not ended."""
        return [request for request in self.requests if request.index not in self._completions]

    def complete(self, request: Request, answer: Answer | None, layout: KVLayout) -> None:
        """Record that ``request`` ends; it still has its pages. ``answer`` None: never admitted."""
        self._completions[request.index] = CompletionOutput(
            index=request.index,
            text=answer.text if answer is not None else "",
            token_ids=tuple(request.generated_ids.tolist()),
            finish_reason=(answer.finish_reason if answer is not None else None) or "abort",
            stop_reason=answer.stop_reason if answer is not None else None,
            logprobs=request.logprobs,
            cumulative_logprob=None if request.logprobs is None else request.cumulative_logprob,
        )
        shared = 0  # pages that are counted with the leader
        if request is not self.leader:
            computed = min(request.num_prompt_tokens, request.num_computed_tokens)
            shared = computed // layout.page_size
        self._pages += layout.pages_for(request.num_computed_tokens) - shared
        self._reserved += request.kv.num_pages - shared if request.kv is not None else 0

    def output(
        self, now: float, layout: KVLayout, seconds_per_token: float | None
    ) -> RequestOutput | None:
        """The result, None until all requests have ended; ``seconds_per_token`` is of prefill."""
        if len(self._completions) < len(self.requests):
            return None
        leader = self.leader
        metrics = RequestMetrics(
            arrival_time=self.arrival_time,
            first_scheduled_time=leader.first_scheduled_time,
            first_token_time=leader.first_token_time,
            finished_time=now,
            num_prompt_tokens=leader.num_prompt_tokens,
            num_generated_tokens=sum(r.num_generated_tokens for r in self.requests),
            num_pages=self._pages,
            num_reserved_pages=self._reserved,
            kv_bytes=self._pages * layout.page_bytes,
            num_preemptions=sum(r.num_preemptions for r in self.requests),
        )
        cached, miss = leader.num_cached_tokens or 0, leader.miss
        if miss is not None:
            lost = leader.num_prompt_tokens - 1 - cached
            seconds = None if seconds_per_token is None else lost * seconds_per_token
            miss = dataclasses.replace(miss, lost_tokens=lost, lost_seconds=seconds)
        return RequestOutput(
            self.group_id,
            self.ask.text,
            tuple(leader.prompt_ids.tolist()),
            [self._completions[index] for index in range(len(self.requests))],
            metrics,
            num_cached_tokens=cached,
            miss=miss,
        )
