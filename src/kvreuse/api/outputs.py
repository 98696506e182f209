"""What comes back: vLLM's result objects, and the deltas of a stream."""

from __future__ import annotations

import dataclasses
from typing import Literal

from kvreuse.api.miss import Miss

FinishReason = Literal["stop", "length", "abort"]


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural log-probability, its rank (1: most probable) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    ``token_ids`` holds every token chosen, also a stop token and those of a stop text, which
    ``text`` leaves out. ``finish_reason`` is ``stop`` (a stop token or text, or end of sequence),
    ``length`` (``max_tokens`` or the end of the context) or ``abort``; ``stop_reason`` is the stop
    text or the stop token's id, and None at the end of sequence. ``logprobs``, where asked for,
    has for each token the chosen one first, then the most probable ones.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times and counts of a request. Times are ``time.perf_counter()`` seconds; None: not reached.

    ``num_pages`` are the pages that hold its tokens, ``num_reserved_pages`` those in its table,
    ``kv_bytes`` the bytes of the former. The last token chosen needs no page. ``num_preemptions``
    times it lost its pages to an older request.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float
    num_prompt_tokens: int
    num_generated_tokens: int
    num_pages: int
    num_reserved_pages: int
    kv_bytes: int
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens per second from the first step that served it to its first token."""
        return _rate(self.num_prompt_tokens, self.first_scheduled_time, self.first_token_time)

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens per second after the first one; None where there was one only."""
        return _rate(self.num_generated_tokens - 1, self.first_token_time, self.finished_time)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutput:
    """The result of one request; ``prompt`` is None where token ids were given.

    ``num_cached_tokens`` of the prompt were not computed, but found in the cache; ``miss`` says why
    they were no more, and is None if they could not be.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    miss: Miss | None = None
    finished: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one answer: a token and the text that has become final.

    ``text`` may be empty (half a character, or the start of a stop text) or hold more than the
    token's own. ``index`` says which of the request's answers it belongs to. ``finish_reason``
    comes with the last delta of an answer, ``output``, the whole result, with the very last one.
    ``logprobs`` are the token's, where asked for. The request's first delta says how many tokens of
    the prompt were cached, and why no more: ``num_cached_tokens`` and ``miss``.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    output: RequestOutput | None = None
    index: int = 0
    finish_reason: FinishReason | None = None
    logprobs: dict[int, Logprob] | None = None
    num_cached_tokens: int | None = None
    miss: Miss | None = None

    @property
    def finished(self) -> bool:
        """Whether this is the request's last delta."""
        return self.output is not None


def _rate(count: int, start: float | None, end: float | None) -> float | None:
    """``count`` per second between two times; None where there is no such interval."""
    if count <= 0 or start is None or end is None or end <= start:
        return None
    return count / (end - start)
