"""Replies about the cache."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from kvreuse.server.schema.replies import Reuse, Usage


class PoolReply(TypedDict):
    """Pages and bytes. ``cached`` pages can be evicted; ``used`` ones are being used, or pinned."""

    page_size: int
    page_bytes: int
    total_pages: int
    free_pages: int
    used_pages: int
    cached_pages: int
    pinned_pages: int


class PrefixReply(TypedDict):
    """Prompts that start alike: ``tokens`` that all of them share, ``pages`` of them together.

    ``hits`` prompts found their first page. ``text`` only with --log-prompts.
    """

    key: str
    tokens: int
    pages: int
    continuations: int
    hits: int
    in_use: bool
    pinned: bool
    text: str | None


class MissReply(TypedDict):
    """Prompts, and tokens of them, that were not found."""

    requests: int
    tokens: int


class RequestsReply(TypedDict):
    """Requests now and since the start."""

    running: int
    waiting: int
    total: int
    finished: int
    aborted: int
    preemptions: int


class CacheReply(TypedDict):
    """``GET /v1/cache``."""

    object: Literal["cache"]
    model: str
    enabled: bool
    pool: PoolReply
    requests: RequestsReply
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    hit_rate: float
    evicted_pages: int
    merged_pages: int
    misses: dict[str, MissReply]
    prefixes: list[PrefixReply]
    uptime_seconds: float


class LookupReply(Reuse):
    """How much of a prompt is resident, and whether all of it would fit now.

    ``available_pages`` are free or can be evicted; ``needed_pages`` of them it would take, those
    that it finds included.
    """

    object: Literal["cache.lookup"]
    needed_pages: int
    available_pages: int
    fits: bool


class PrefillReply(TypedDict):
    """The usage of a prompt that was computed, and the seconds that it took."""

    object: Literal["cache.prefill"]
    model: str
    usage: Usage
    seconds: float


class ResetReply(TypedDict):
    """The pages that were dropped, and those that stay: in use, or pinned."""

    object: Literal["cache.reset"]
    dropped_pages: int
    kept_pages: int
    pinned_pages: int
