"""Replay: prompts through the engine's own cache, as if memory had no end. Nothing is computed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.study.why.asked import Asked
from kvreuse.study.why.culprits import canonical
from kvreuse.study.why.rendered import Ids, Rendered


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What there was of a prompt when its turn came."""

    tokens: int
    """Those that need not be computed: at most all but the last."""
    like: int | None
    """The earlier prompt that it has these tokens in common with."""
    extends: int | None
    """The earlier chat that it goes on from: all messages of that, and more."""
    follows: int | None
    """The earlier chat whose last message it has too: the same one, maybe cut at the front."""


class EndlessCache:
    """A cache for so many tokens that nothing is ever evicted; its pages are never touched."""

    def __init__(self, page_size: int, most_tokens: int, prompts: int) -> None:
        """Room for ``prompts`` that have ``most_tokens`` together."""
        layout = KVLayout.uniform(1, 1, 16, page_size)
        pages = most_tokens // page_size + 3 * prompts + 2  # unfilled ones, and one being written
        self._cache = KVCache(PagePool(layout, pages), b"kvreuse why")
        self._owners: dict[int, int] = {}  # page -> the prompt that it was first computed for

    def serve(self, ids: Ids, salt: str | None, prompt: int) -> tuple[int, int | None]:
        """Tokens found of a prompt, and the earlier one they were computed for; then it is there.

        Where prompts part at the end of a page the earlier one is who computed the last page.
        """
        seq, copies = self._cache.open(self._cache.lookup(ids, salt))
        found, shared = seq.written, seq.written // self._cache.page_size
        source = copies[0][0] if copies else None
        if source is None and shared:
            source = seq.pages[shared - 1]
        like = None if source is None else self._owners[source]
        if not self._cache.reserve(seq, len(ids) - found):
            raise RuntimeError("an endless cache has come to its end")
        for page in seq.pages[shared:]:
            self._owners[page] = prompt
        self._cache.commit(seq, ids, len(ids) - found)
        self._cache.close(seq, ids)
        return found, like


def replayed(
    requests: Sequence[Asked],
    ids_of: Sequence[Ids],
    rendered: Callable[[int], Rendered],
    page_size: int,
    tick: Callable[[], None],
) -> list[Found]:
    """What each request finds of those before it.

    Answers count where they are known: a log of the server has them, and a chat that goes on from
    an earlier one has the answer to that as its next message. ``rendered`` makes a request's
    prompt again, ``tick`` is called for each.
    """
    chats = _Chats()
    cache = EndlessCache(page_size, _most_tokens(requests, ids_of), 3 * len(requests))
    every: list[Found] = []
    for place, (asked, ids) in enumerate(zip(requests, ids_of, strict=True)):
        before, follows = chats.take(asked, place)
        if before is not None:
            known = _answered(requests[before], ids_of[before], rendered, place)
            if known is not None:
                cache.serve(known, asked.salt, before)
        tokens, like = cache.serve(ids, asked.salt, place)
        every.append(Found(tokens, like, before, follows))
        for answered in rendered(place).answered() if asked.answers else ():
            cache.serve(answered, asked.salt, place)
        tick()
    return every


def known_until(asked: Asked, rendered: Rendered, messages: int) -> int:
    """Tokens of a chat up to the end of its first ``messages``, and of an answer right after."""
    every = asked.messages or ()
    if messages < len(every) and every[messages]["role"] == "assistant":
        messages += 1
    for index in range(messages - 1, -1, -1):
        span = rendered.parts.message(index)
        if span is not None:
            return min(rendered.tokens_before(span.end), len(rendered.ids) - 1)
    return 0


class _Chats:
    """Which earlier chat one goes on from, by digests of their messages."""

    def __init__(self) -> None:
        self._whole: dict[bytes, int] = {}
        self._last: dict[bytes, int] = {}  # by the last message alone

    def take(self, asked: Asked, place: int) -> tuple[int | None, int | None]:
        """Of the earlier chats: the longest whose messages ``asked`` starts with, and the one
        whose last message is the latest in it."""
        if asked.messages is None:
            return None, None
        whole = _digest([asked.salt, asked.tools, dict(asked.options)])
        longest = latest = None
        for number, message in enumerate(asked.messages, start=1):
            whole.update(alone := _digest([asked.salt, message]).digest())
            if number < len(asked.messages):
                longest = self._whole.get(whole.digest(), longest)
                latest = self._last.get(alone, latest)
        self._whole[whole.digest()] = self._last[alone] = place
        return longest, latest


def _digest(value: Any) -> Any:
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass"))


def _answered(
    before: Asked, before_ids: Ids, rendered: Callable[[int], Rendered], place: int
) -> Ids | None:
    """The start of a chat that is an earlier one with its answer; None if that is not its start."""
    count = len(before.messages or ())
    now = rendered(place)
    if (now.asked.messages or ())[count]["role"] != "assistant":
        return None
    length = len(before_ids)
    if not np.array_equal(now.ids[:length], before_ids):
        return None
    known = now.ids[: known_until(now.asked, now, count)]
    return known if len(known) > length else None


def _most_tokens(requests: Iterable[Asked], ids_of: Iterable[Ids]) -> int:
    """Tokens that may come to lie in the cache: every prompt, and its answers once more."""
    total = 0
    for asked, ids in zip(requests, ids_of, strict=True):
        bytes_answered = sum(len(answer.encode()) for answer in asked.answers)
        total += len(ids) * (2 + len(asked.answers)) + bytes_answered
    return total
