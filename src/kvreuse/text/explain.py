"""What the tokens around a miss read, and where in a chat they lie."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from kvreuse.api.miss import CACHED_TOKENS, Miss, Words
from kvreuse.text.offsets import shared_start, token_offsets
from kvreuse.text.tokenizer import Tokenizer

LONGEST = 1 << 18
"""Characters of a chat beyond which nobody looks for the part that a token lies in."""


def readable(
    miss: Miss,
    ids: Sequence[int],
    tokenizer: Tokenizer,
    text: str | None = None,
    part_of: Callable[[int], str] | None = None,
) -> Miss:
    """``miss``, of the prompt ``ids``, with the words that it reads once somebody asks for them.

    ``part_of`` tells which part of a chat a character of ``text``, the prompt's, lies in.
    """

    @functools.cache  # not a cached_property: its lock would make all misses wait for a long one
    def read() -> Words:
        def text_of(tokens: Sequence[int]) -> str:
            return tokenizer.decode(tokens, skip_special_tokens=False, continuation=True)

        at = miss.index
        own, cached = text_of(ids[at : at + CACHED_TOKENS]), text_of(miss.cached)
        part = None
        if at and part_of is not None and text is not None and len(text) <= LONGEST:
            offsets = token_offsets(tokenizer, ids[:at], text)
            if offsets is not None:
                # Tokens that differ may still begin alike: the part is that of what differs.
                part = part_of(offsets[-1] + shared_start(own, cached))
        return Words(text_of(ids[max(0, at - CACHED_TOKENS) : at]), own, cached, part)

    return dataclasses.replace(miss, read=read)
