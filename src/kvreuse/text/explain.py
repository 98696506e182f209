"""What a miss reads, where in a chat it lies, and what it cost: from tokens to what people see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kvreuse.api.miss import CACHED_TOKENS, Miss
from kvreuse.api.outputs import RequestOutput
from kvreuse.text.alike import shared_start
from kvreuse.text.offsets import token_offsets
from kvreuse.text.tokenizer import Tokenizer

PartOf = Callable[[int], str]
"""From a character of a prompt's text to the part of the chat that it lies in."""


def explained(
    output: RequestOutput,
    tokenizer: Tokenizer | None,
    seconds_per_token: float | None,
    part_of: PartOf | None = None,
) -> RequestOutput:
    """``output``, whose miss says all that can be said; unchanged where there is none."""
    miss = output.miss
    if miss is None:
        return output
    lost = len(output.prompt_token_ids) - 1 - output.num_cached_tokens
    miss = dataclasses.replace(
        miss,
        lost_tokens=lost,
        lost_seconds=None if seconds_per_token is None else lost * seconds_per_token,
    )
    if tokenizer is not None:
        miss = _in_words(miss, output, tokenizer, part_of)
    return dataclasses.replace(output, miss=miss)


def _in_words(
    miss: Miss, output: RequestOutput, tokenizer: Tokenizer, part_of: PartOf | None
) -> Miss:
    ids, at = output.prompt_token_ids, miss.index

    def text(tokens: Sequence[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=False, continuation=True)

    own, cached = text(ids[at : at + CACHED_TOKENS]), text(miss.cached)
    part = None
    if at and part_of is not None and output.prompt is not None:
        offsets = token_offsets(tokenizer, ids[:at], output.prompt)
        if offsets is not None:
            # Tokens that differ may still begin alike; what differs is what matters.
            alike = shared_start(own, cached)
            part = part_of(offsets[-1] + alike)
    return dataclasses.replace(
        miss,
        before=text(ids[max(0, at - CACHED_TOKENS) : at]),
        prompt_text=own,
        cached_text=cached,
        part=part,
    )
