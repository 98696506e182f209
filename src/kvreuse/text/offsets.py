"""Where in a text each of its tokens is, in characters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from kvreuse.text.tokenizer import Tokenizer


def token_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int] | None:
    """Where in ``text`` each of its tokens starts, in characters, and where the last one ends.

    ``ids`` may be only the first tokens of the text. A space that encoding put in front of a piece,
    and a special token that is not in the text (BOS), take no characters. For a token that starts
    inside a character, that character's place counts. None where the tokens do not spell the text,
    for example because the tokenizer normalises it.
    """
    raw = text.encode("utf-8", "surrogatepass")
    at = 0
    starts = [0]
    for token in ids:
        spelled = tokenizer.token_bytes(token)
        if raw.startswith(spelled, at):
            at += len(spelled)
        elif tokenizer.space_prefix and spelled[:1] == b" " and raw.startswith(spelled[1:], at):
            at += len(spelled) - 1
        elif not tokenizer.is_special(token):
            return None
        starts.append(at)
    leading = (np.frombuffer(raw, dtype=np.uint8) & 0xC0) != 0x80
    characters = np.concatenate([[0], np.cumsum(leading)])
    # The character of a byte that continues it has been counted already, but has not ended.
    inside = np.concatenate([~leading, [False]])
    offsets: list[int] = (characters - inside)[starts].tolist()
    return offsets


def spells(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> bool:
    """Whether the tokens spell the whole of ``text`` and nothing else."""
    offsets = token_offsets(tokenizer, ids, text)
    if offsets is None or offsets[-1] != len(text):
        return False
    return all(
        before < after or not tokenizer.is_special(token)
        for token, before, after in zip(ids, offsets, offsets[1:], strict=False)
    )


def token_at(tokenizer: Tokenizer, ids: Sequence[int], text: str, character: int) -> int:
    """How many tokens of ``text`` end before this character; 0 if they do not spell it."""
    offsets = token_offsets(tokenizer, ids, text)
    return 0 if offsets is None else bisect_right(offsets, character) - 1
