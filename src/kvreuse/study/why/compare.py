"""Two prompts compared: how far they share, where their texts part, and why."""

from __future__ import annotations

import dataclasses
import os
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from kvreuse.study.why.asked import read_file
from kvreuse.study.why.culprits import Culprit, culprit
from kvreuse.study.why.rendered import Rendered, Texts
from kvreuse.text.offsets import shared_start
from kvreuse.text.parts import Part

WINDOW = 240
"""Characters after the first difference that are looked at for where the texts agree again."""
AGREES = 8
"""Characters in a row that count as agreeing again."""
CONTEXT = 48
"""Characters shown on either side of a difference."""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Two texts part at the character ``at``; what is shown of it."""

    at: int
    before: str
    """What both have in front of the pieces."""
    one: str
    """The piece of the first text that the other has not; empty where it ends."""
    other: str
    one_after: str
    """What follows the piece of the first text."""
    other_after: str


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What the second of two prompts, served after the first, has in common with it."""

    one_tokens: int
    other_tokens: int
    shared_tokens: int
    """From the first token on."""
    reused_tokens: int
    """What the cache would give the second: all but its last token at most, none across salts."""
    page_size: int
    part: str | None
    """The part of a chat that they part in; None where one starts with all of the other."""
    difference: Difference | None
    """None where the texts are equal."""
    culprit: Culprit | None

    @property
    def shared_pages(self) -> int:
        """Full pages that both start with."""
        return self.shared_tokens // self.page_size

    @property
    def other_pages(self) -> int:
        """Pages that the second takes."""
        return -(-self.other_tokens // self.page_size)


def compare_files(
    model: str | os.PathLike[str], one: Path, other: Path, page_size: int = 32
) -> Comparison:
    """What the prompt in ``other`` shares with that in ``one``, on this model.

    RequestError for a file that holds no prompt, or one that the model refuses; ModelFileError;
    OSError.
    """
    asked = read_file(one), read_file(other)
    texts = Texts.of_model(model)
    return compare(texts.rendered(asked[0]), texts.rendered(asked[1]), page_size)


def compare(one: Rendered, other: Rendered, page_size: int) -> Comparison:
    """What ``other`` shares with ``one``, and what keeps it from sharing more."""
    length = min(len(one.ids), len(other.ids))
    differ = np.flatnonzero(one.ids[:length] != other.ids[:length])
    shared = int(differ[0]) if len(differ) else length
    found = culprit(one, other)
    gap = shown(one, other, found)
    salted = one.asked.salt != other.asked.salt
    is_chat = one.asked.messages is not None or other.asked.messages is not None
    ends = gap is None or gap.at == min(len(one.text), len(other.text))
    return Comparison(
        one_tokens=len(one.ids),
        other_tokens=len(other.ids),
        shared_tokens=shared,
        reused_tokens=0 if salted else min(shared, len(other.ids) - 1),
        page_size=page_size,
        part=None if gap is None or ends or not is_chat else str(part_of(one, other, gap.at)),
        difference=gap,
        culprit=found,
    )


def part_of(one: Rendered, other: Rendered, at: int) -> Part:
    """The part of the prompt that two texts part in: the later one's, unless it ends there."""
    part = other.parts.at(at)
    return one.parts.at(at) if part.kind == "template" else part


def shown(one: Rendered, other: Rendered, found: Culprit | None) -> Difference | None:
    """Where two prompts part, with the whole of what differs where that is known."""
    if found is None or not found.in_text:
        return difference(one.text, other.text)
    return difference(one.text, other.text, found.widen, (found.one, found.other))


def difference(
    one: str, other: str, widen: int = 0, pieces: tuple[str, str] | None = None
) -> Difference | None:
    """Where ``one`` and ``other`` part; None where they are equal.

    The pieces start ``widen`` characters before that, to be read as the words that they are; left
    out, they end where the texts agree again.
    """
    at = shared_start(one, other)
    if at == len(one) == len(other):
        return None
    start = max(0, at - widen)
    if pieces is not None:
        ends = [start + len(piece) for piece in pieces]
    else:
        lengths = _until_they_agree(one[at : at + WINDOW], other[at : at + WINDOW])
        ends = [at + length for length in lengths]
    return Difference(
        at,
        one[max(0, start - CONTEXT) : start],
        one[start : ends[0]],
        other[start : ends[1]],
        one[ends[0] : ends[0] + CONTEXT],
        other[ends[1] : ends[1] + CONTEXT],
    )


def _until_they_agree(one: str, other: str) -> tuple[int, int]:
    """How long the pieces at the start of two windows are; all of it where nothing agrees."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= AGREES:
            return block.a, block.b
    return min(len(one), CONTEXT), min(len(other), CONTEXT)
