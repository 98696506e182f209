"""Two prompts compared: how far they share, where they part, and why."""

from __future__ import annotations

import dataclasses

import numpy as np

from kvreuse.study.why.culprits import Culprit, culprit, part_of, shown
from kvreuse.study.why.difference import Difference
from kvreuse.study.why.rendered import Rendered


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
