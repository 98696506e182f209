"""What passes between the engine and a runner, and a request with its tokens and two cursors."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kvreuse.api.miss import Miss
from kvreuse.api.outputs import Logprob
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.ops.batch import BatchInput, Float32Array, Int32Array


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


class Pages(Protocol):
    """What a request sees of its pages; the cache makes and changes them.

    ``written`` tokens are in pages, there is room for ``reserved``; ``table[:num_pages]`` names
    the pages, int32, in order of position.
    """

    @property
    def table(self) -> Int32Array:
        """int32[capacity]; the first ``num_pages`` entries count."""

    @property
    def num_pages(self) -> int:
        """Entries of the table that count."""

    @property
    def written(self) -> int:
        """Tokens whose keys and values are in pages."""

    @property
    def reserved(self) -> int:
        """Tokens that the pages have room for."""

    @property
    def version(self) -> int:
        """Changes whenever an entry of the table that counts does."""


class Request:
    """A prompt and its answer so far: one array of tokens, and two cursors into it.

    ::

        |<------- num_computed_tokens ------->|            keys and values are in pages
        |<---------------- num_tokens --------------->|    known: the prompt, then the answer

    A step computes tokens from the first cursor towards the second; when it reaches it, the row of
    the last token gives the next one. There are no phases: a request that was preempted, or whose
    prefix was found in the cache, has its first cursor elsewhere, and that is all. ``kv`` are its
    pages while it runs, None while it waits.
    """

    __slots__ = (
        "_tokens",
        "arrival",
        "arrival_time",
        "cache_salt",
        "cumulative_logprob",
        "first_scheduled_time",
        "first_token_time",
        "group_id",
        "index",
        "kv",
        "last_token",
        "logprobs",
        "max_tokens",
        "miss",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "params",
        "prompt",
        "request_id",
        "retention",
        "turn",
    )

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        *,
        prompt_ids: Int32Array,
        params: SamplingParams,
        max_tokens: int,
        arrival_time: float,
        cache_salt: str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        index: int = 0,
        group_id: str | None = None,
    ) -> None:
        """``max_tokens`` is what this request may generate, whatever ``params`` allows.

        It is answer ``index`` of those that were asked for as ``group_id``.
        """
        self.request_id = request_id
        self.index = index
        self.group_id = request_id if group_id is None else group_id
        self.prompt = prompt
        self.params = params
        self.max_tokens = max_tokens
        self.cache_salt = cache_salt
        self.retention = retention
        self.num_prompt_tokens = self.num_tokens = len(prompt_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # until it is admitted
        self.miss: Miss | None = None  # why it was no more
        self.num_preemptions = 0
        self.kv: Pages | None = None
        self.arrival = self.turn = 0  # the scheduler's: which to serve, and to preempt, first
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self.arrival_time = arrival_time
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token = int(prompt_ids[-1])
        self._tokens = prompt_ids

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that may come to need room in pages: all but the last that is generated."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> Int32Array:
        """int32[num_prompt_tokens]."""
        return self._tokens[: self.num_prompt_tokens]

    @property
    def generated_ids(self) -> Int32Array:
        """int32[num_generated_tokens]."""
        return self._tokens[self.num_prompt_tokens : self.num_tokens]

    @property
    def ids(self) -> Int32Array:
        """int32[num_tokens]: all that is known."""
        return self._tokens[: self.num_tokens]

    def tokens(self, start: int, end: int) -> Int32Array:
        """int32[end - start]: the tokens at these positions."""
        return self._tokens[start:end]

    def shared_prefix(self, other: Request) -> int:
        """Tokens that both know and that are the same, from the first one on."""
        length = min(self.num_tokens, other.num_tokens)
        differ = self._tokens[:length] != other._tokens[:length]
        first = int(differ.argmax()) if length else 0
        return first if length and differ[first] else length

    def append(self, token: int) -> None:
        """Put the next token at the end of the answer.

        The first one brings room for all that may follow, so that a token allocates nothing.
        """
        if len(self._tokens) == self.num_prompt_tokens:
            grown = np.empty(self.num_prompt_tokens + self.max_tokens, dtype=np.int32)
            grown[: self.num_prompt_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self.num_tokens] = token
        self.last_token = token
        self.num_tokens += 1
