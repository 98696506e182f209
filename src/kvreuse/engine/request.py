"""Request: the tokens of a prompt and one of its answers, and two cursors into them."""

from __future__ import annotations

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.miss import Miss
from kvreuse.api.outputs import Logprob
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.kv.hit import Hit
from kvreuse.kv.sequence import SeqKV
from kvreuse.ops.batch import Int32Array


class Request:
    """A prompt and its answer so far: one array of tokens, and two cursors into it.

    ::

        |<------- num_computed_tokens ------->|            keys and values are in pages
        |<---------------- num_tokens --------------->|    known: the prompt, then the answer

    A step computes tokens from the first cursor towards the second; when it reaches the second, the
    row of the last token gives the next token. There are no prefill and decode phases: a preempted
    request, or one whose prefix was cached, differs in its first cursor only. ``kv`` are its pages
    while it runs, None while it waits.
    """

    __slots__ = (
        "_tokens",
        "arrival",
        "ask",
        "cumulative_logprob",
        "first_scheduled_time",
        "first_token_time",
        "group_id",
        "hit",
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
        "turn",
    )

    def __init__(
        self, ask: Ask, group_id: str, prompt_ids: Int32Array, max_tokens: int, index: int = 0
    ) -> None:
        """Answer ``index`` of the ``ask.params.n`` answers of the group ``group_id``.

        ``prompt_ids`` are the checked tokens of ``ask``; at most ``max_tokens`` are generated.
        """
        self.ask = ask
        self.group_id = group_id
        self.index = index
        self.max_tokens = max_tokens
        self.num_prompt_tokens = self.num_tokens = len(prompt_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # None until it is admitted
        self.miss: Miss | None = None  # why no more tokens were cached
        self.num_preemptions = 0
        self.kv: SeqKV | None = None
        self.hit: Hit | None = None  # from its last look-up in the cache
        self.arrival = self.turn = 0  # the scheduler's order of preemption, and of admission
        self.logprobs: list[dict[int, Logprob]] | None = None if ask.params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token = int(prompt_ids[-1])
        self._tokens = prompt_ids

    @property
    def request_id(self) -> str:
        """The group's id; from index 1 on followed by a slash and the index."""
        return self.group_id if self.index == 0 else f"{self.group_id}/{self.index}"

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the ask."""
        return self.ask.params

    @property
    def seed(self) -> int | None:
        """The seed of this answer: the ask's seed plus the index; None if the ask has none."""
        seed = self.ask.params.seed
        return None if seed is None else (seed + self.index) % 2**64

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that may need room in pages: all but the last generated one."""
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
        """int32[num_tokens]: the prompt and the answer so far."""
        return self._tokens[: self.num_tokens]

    def tokens(self, start: int, end: int) -> Int32Array:
        """int32[end - start]: the tokens at these positions."""
        return self._tokens[start:end]

    def shared_prefix(self, other: Request) -> int:
        """The length of the longest common prefix of both requests' tokens."""
        length = min(self.num_tokens, other.num_tokens)
        differ = self._tokens[:length] != other._tokens[:length]
        first = int(differ.argmax()) if length else 0
        return first if length and differ[first] else length

    def append(self, token: int) -> None:
        """Append the next token to the answer.

        The first one allocates room for all ``max_tokens``; later ones allocate nothing.
        """
        if len(self._tokens) == self.num_prompt_tokens:
            grown = np.empty(self.num_prompt_tokens + self.max_tokens, dtype=np.int32)
            grown[: self.num_prompt_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self.num_tokens] = token
        self.last_token = token
        self.num_tokens += 1
