"""Group: the ``n`` answers to one prompt, and the result that they become together."""

from __future__ import annotations

import dataclasses

from kvreuse.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from kvreuse.api.retention import Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.answer import Answer
from kvreuse.engine.answer.guide.guide import Guide
from kvreuse.engine.request import Request
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.batch import Int32Array
from kvreuse.text.explain import PartOf


class Group:
    """The requests that one prompt becomes, one for each answer.

    The first one, the leader, computes the prompt; the others are forked from it with its first
    token, and ``unborn`` until then.
    """

    def __init__(self, requests: list[Request], layout: KVLayout) -> None:
        self.requests = requests
        self.unborn = requests[1:]
        self.part_of: PartOf | None = None
        """What says which part of a chat a character of the prompt lies in."""
        self.guide: Guide | None = None
        """Where every answer starts in the form that it has to follow."""
        self.pins: frozenset[int] = frozenset()
        """The names of the pages that will be pinned when the request ends."""
        self._layout = layout
        self._completions: dict[int, CompletionOutput] = {}
        self._pages = self._reserved = 0

    @property
    def leader(self) -> Request:
        """Who computes the prompt."""
        return self.requests[0]

    @property
    def unfinished(self) -> list[Request]:
        """The requests that have not ended."""
        return [request for request in self.requests if request.index not in self._completions]

    def complete(self, request: Request, answer: Answer | None) -> CompletionOutput:
        """``request`` ends, its pages still there; ``answer`` is None if it was never admitted."""
        completion = CompletionOutput(
            index=request.index,
            text=answer.text if answer is not None else "",
            token_ids=tuple(request.generated_ids.tolist()),
            finish_reason=(answer.finish_reason if answer is not None else None) or "abort",
            stop_reason=answer.stop_reason if answer is not None else None,
            logprobs=request.logprobs,
            cumulative_logprob=None if request.logprobs is None else request.cumulative_logprob,
        )
        shared = 0
        if request is not self.leader and request.kv is not None:
            shared = request.num_prompt_tokens // self._layout.page_size
        self._pages += self._layout.pages_for(request.num_computed_tokens) - shared
        self._reserved += request.kv.num_pages - shared if request.kv is not None else 0
        self._completions[request.index] = completion
        return completion

    def output(self, now: float) -> RequestOutput | None:
        """The result, once all have ended."""
        if len(self._completions) < len(self.requests):
            return None
        leader = self.leader
        metrics = RequestMetrics(
            arrival_time=leader.arrival_time,
            first_scheduled_time=leader.first_scheduled_time,
            first_token_time=leader.first_token_time,
            finished_time=now,
            num_prompt_tokens=leader.num_prompt_tokens,
            num_generated_tokens=sum(r.num_generated_tokens for r in self.requests),
            num_pages=self._pages,
            num_reserved_pages=self._reserved,
            kv_bytes=self._pages * self._layout.page_bytes,
            num_preemptions=sum(r.num_preemptions for r in self.requests),
        )
        return RequestOutput(
            leader.request_id,
            leader.prompt,
            tuple(leader.prompt_ids.tolist()),
            [self._completions[index] for index in range(len(self.requests))],
            metrics,
            num_cached_tokens=leader.num_cached_tokens or 0,
            miss=leader.miss,
        )


def make_group(
    request_id: str,
    prompt: str | None,
    prompt_ids: Int32Array,
    params: SamplingParams,
    *,
    max_tokens: int,
    arrival_time: float,
    cache_salt: str | None,
    retention: Retention,
    layout: KVLayout,
) -> Group:
    """``params.n`` requests; the i-th has the seed plus i, or its own where there is none."""
    requests = []
    for index in range(params.n):
        own = params
        if params.n > 1:
            seed = None if params.seed is None else (params.seed + index) % 2**64
            own = dataclasses.replace(params, n=1, seed=seed)
        requests.append(
            Request(
                request_id if index == 0 else f"{request_id}/{index}",
                prompt,
                prompt_ids=prompt_ids,
                params=own,
                max_tokens=max_tokens,
                arrival_time=arrival_time,
                cache_salt=cache_salt,
                retention=retention,
                index=index,
                group_id=request_id,
            )
        )
    return Group(requests, layout)
