"""Where two texts part, and the pieces that differ there."""

from __future__ import annotations

import dataclasses
from difflib import SequenceMatcher

from kvreuse.text.alike import shared_start

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
