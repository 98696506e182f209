"""SmolLM's tokenizer once more, in plain Python: what the fast one is measured by."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

# GPT-2's words, for text without numeric characters: there ``[^\W_]`` is exactly ``\p{L}``.
WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_characters() -> list[str]:
    """The printable character of each byte (GPT-2): bytes that print are themselves."""
    free = iter(range(256, 512))
    shown = (*range(33, 127), *range(161, 173), *range(174, 256))
    return [chr(byte if byte in shown else next(free)) for byte in range(256)]


def words(text: str) -> Iterator[str]:
    """Each numeric character by itself, and GPT-2's words of what lies between."""
    numeric = re.escape("".join(filter(_numeric, set(text))))
    for piece in re.split(f"([{numeric}])", text) if numeric else [text]:
        yield from [piece] if _numeric(piece[:1]) else WORDS.findall(piece)


def _numeric(character: str) -> bool:
    return character != "" and unicodedata.category(character).startswith("N")


def encode(text: str, tokens: Sequence[str], merges: Sequence[str]) -> list[int]:
    """Token ids of a text without control tokens: merges the pair of lowest rank, until none is."""
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    alphabet = byte_characters()
    result = []
    for word in words(text):
        parts = [alphabet[byte] for byte in word.encode()]
        while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
            left, right = min(pairs, key=ranks.__getitem__)
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == (left, right):
                    parts[at : at + 2] = [left + right]
                at += 1
        result += [ids[part] for part in parts]
    return result
