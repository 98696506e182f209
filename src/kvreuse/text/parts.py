"""Parts of a chat prompt: system text, tools, messages, and the template's own text."""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kvreuse.text.chat import ChatTemplate, Message
from kvreuse.text.marks import Found, found_texts

SYSTEM_ROLES = ("system", "developer")


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt. ``index`` is its place in the list of tools or messages, from 0."""

    kind: Literal["system", "tool", "message", "template"]
    index: int | None = None
    role: str | None = None

    def __str__(self) -> str:
        """For people, so counted from 1: ``message 3 (user)``."""
        if self.kind == "system":
            return "system text"
        if self.kind == "template":
            return "template"
        role = f" ({self.role})" if self.role is not None else ""
        return f"{self.kind} {(self.index or 0) + 1}{role}"


TEMPLATE = Part("template")


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """``part`` is at ``[start, end)`` of the prompt's text, in characters."""

    part: Part
    start: int
    end: int


class PromptParts:
    """Finds the part of a prompt that a character belongs to."""

    def __init__(self, spans: Sequence[Span]) -> None:
        """``spans`` are in order and do not overlap; text outside them is the template's."""
        self.spans = tuple(spans)
        self._starts = [span.start for span in spans]

    def at(self, character: int) -> Part:
        """The part with the character at this offset, else the one that ends right before it."""
        span = self.span_at(character)
        return TEMPLATE if span is None else span.part

    def span_at(self, character: int) -> Span | None:
        """Where that part is; None for the template's own text."""
        place = bisect_right(self._starts, character) - 1
        if place >= 0 and character <= self.spans[place].end:
            return self.spans[place]
        return None

    def span_of(self, part: Part) -> Span | None:
        """Where ``part`` is; None where it was dropped by the template or cannot be found."""
        return next((span for span in self.spans if span.part == part), None)

    def message(self, index: int) -> Span | None:
        """Where the message at ``index`` is, which may be the system text; None as above."""
        spans = (span for span in self.spans if span.part.kind in ("system", "message"))
        return next((span for span in spans if span.part.index == index), None)


def prompt_parts(
    template: ChatTemplate,
    text: str,
    messages: Sequence[Message],
    /,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> PromptParts:
    """The parts of ``text``, which ``template`` renders of these messages, tools and options.

    Where the template rewrites them so that they cannot be found, all text is the template's.
    """
    tools = tools or ()
    count = len(tools)

    def render(values: list[Any]) -> str:
        marked_tools = values[:count] or None
        return template.render(values[count:], tools=marked_tools, **options)

    found = found_texts(text, [*tools, *messages], render) or []
    owners = [Part("tool", index) for index in range(count)]
    owners += [_part_of(index, message) for index, message in enumerate(messages)]
    spans = [Span(owners[one.owner], one.start, one.end) for one in _merged(found)]
    return PromptParts(_ordered([_widened(span, text, tools) for span in spans]))


def _part_of(index: int, message: Message) -> Part:
    role = str(message["role"])
    if index == 0 and role in SYSTEM_ROLES:
        return Part("system", index, role)
    return Part("message", index, role)


def _merged(found: list[Found]) -> list[Found]:
    """Neighbours of one owner joined, with the template's text between them."""
    merged: list[Found] = []
    for one in found:
        if merged and merged[-1].owner == one.owner:
            last = merged.pop()
            one = Found(one.owner, last.start, max(last.end, one.end))  # noqa: PLW2901
        merged.append(one)
    return merged


def _widened(span: Span, text: str, tools: Sequence[Mapping[str, Any]]) -> Span:
    """The span of a tool widened to the whole of its JSON, where it was printed as JSON."""
    if span.part.kind != "tool" or span.part.index is None:
        return span
    for indent in (None, 4, 2):
        whole = json.dumps(tools[span.part.index], ensure_ascii=False, indent=indent)
        at = text.find(whole, max(0, span.start - len(whole)), span.end + len(whole))
        if 0 <= at <= span.start and span.end <= at + len(whole):
            return Span(span.part, at, at + len(whole))
    return span


def _ordered(spans: list[Span]) -> list[Span]:
    """The spans, shortened where they overlap (a template may nest one text in another)."""
    ordered: list[Span] = []
    for span in spans:
        start = max(span.start, ordered[-1].end if ordered else 0)
        if start < span.end:
            ordered.append(Span(span.part, start, span.end))
    return ordered
