"""Finds where a chat template put the texts of a conversation, by marks in these texts.

A template may trim, reorder, drop or rewrite texts. So it is rendered once more with marks in every
text that occur nowhere else. If the result differs from the first one by the marks alone, they show
where each text is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvreuse.text.alike import shared_end, shared_start

UNMARKED = frozenset({"role", "type", "id", "tool_call_id", "index"})
"""Keys whose values get no marks, since templates compare them or check their form."""
_SHOWN = frozenset({"content", "text", "description"})


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A text of ``owner`` is at ``[start, end)`` of the rendered text, in characters."""

    owner: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    owner: int
    text: str
    offset: int
    """Characters of ``text`` before the mark inside it."""


class Marker:
    """Puts marks into texts: one at each end of a text, or a single one inside it.

    Marks at both ends are exact. A mark inside also works with templates that look at how a text
    begins or ends, or cut a piece off; the text then extends as far as the rendered text agrees
    with it.
    """

    def __init__(self, text: str, inside: float | None = None) -> None:
        """``text`` was rendered without marks. ``inside`` is the share of a text before its mark;
        None: marks at both ends.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        self._name = f"mark{digest[:16]}x"  # letters and digits: nothing escapes them
        self._inside = inside
        self._text = text
        self._leaves: list[_Leaf] = []

    def marked(self, value: Any, owner: int) -> Any:
        """``value``, a nested structure, with marks in every text in it."""
        if isinstance(value, str):
            return self._mark(value, owner)
        if isinstance(value, Mapping):
            return {
                key: inner if self._is_left(key, inner) else self.marked(inner, owner)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.marked(inner, owner) for inner in value]
        return value

    def _is_left(self, key: Any, value: Any) -> bool:
        if key in UNMARKED:
            return True
        return self._inside is not None and isinstance(value, str) and key not in _SHOWN

    def _mark(self, value: str, owner: int) -> str:
        core = value.strip()
        if not core:
            return value
        start = value.index(core)
        before, after = value[:start], value[start + len(core) :]
        name, offset = f"{self._name}{len(self._leaves)}", int(len(core) * (self._inside or 0.0))
        self._leaves.append(_Leaf(owner, core, offset))
        if self._inside is not None:
            return f"{before}{core[:offset]}{name}m{core[offset:]}{after}"
        return f"{before}{name}b{core}{name}e{after}"

    def find(self, rendered: str) -> list[Found] | None:
        """Where the texts are, in order; None where marks changed the rest of the rendered text."""
        pattern = re.compile(rf"{self._name}(\d+)([bme])")
        if pattern.sub("", rendered) != self._text:
            return None
        found: list[Found] = []
        open_at: dict[int, int] = {}
        removed = 0
        for mark in pattern.finditer(rendered):
            at = mark.start() - removed
            removed += len(mark[0])
            number, kind = int(mark[1]), mark[2]
            if kind == "b":
                if number in open_at:  # the mark at its end was cut off
                    found.append(self._around(number, open_at[number], "b"))
                open_at[number] = at
            elif kind == "e" and number in open_at:
                found.append(Found(self._leaves[number].owner, open_at.pop(number), at))
            else:
                found.append(self._around(number, at, kind))
        found += [self._around(number, at, "b") for number, at in open_at.items()]
        return sorted(found, key=lambda one: one.start)

    def _around(self, number: int, at: int, kind: str) -> Found:
        """A text with one mark, which is at ``at``: it extends as far as the two texts agree."""
        leaf = self._leaves[number]
        split = {"b": 0, "m": leaf.offset, "e": len(leaf.text)}[kind]
        before = self._text[max(0, at - split) : at]
        after = self._text[at : at + len(leaf.text) - split]
        back = shared_end(before, leaf.text[:split])
        forth = shared_start(after, leaf.text[split:])
        return Found(leaf.owner, at - back, at + forth)


def found_texts(
    text: str, values: list[Any], render: Callable[[list[Any]], str]
) -> list[Found] | None:
    """Where the texts in ``values`` are in ``text``, which is ``render(values)``.

    None where the template does not let them be found. The owner of a text is its place in
    ``values``.
    """
    for inside in (None, 0.5, 0.8, 0.2):
        marker = Marker(text, inside)
        marked = [marker.marked(value, owner) for owner, value in enumerate(values)]
        try:
            found = marker.find(render(marked))
        except Exception:  # a template may refuse texts with marks
            continue
        if found is not None:
            return found
    return None
