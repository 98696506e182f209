"""The usual reasons for which two prompts part too early, recognised and named."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvreuse.errors import RequestError
from kvreuse.study.why.rendered import Rendered
from kvreuse.text.offsets import shared_end, shared_start

LONGEST = 96
"""Characters that a clock or an id may have."""
SAME_AFTER = 32
"""Characters that must follow alike for a difference inside the newest message to be a loss."""


class Cause(str, enum.Enum):
    """A reason for which prompts share less than they could."""

    CLOCK = "clock"
    RANDOM_ID = "random id"
    FIELD = "field in the system text"
    TOOL_ORDER = "order of tools"
    KEY_ORDER = "order of keys"
    TOOLS = "other tools"
    TEMPLATE = "template not append-only"
    HISTORY = "history cut at the front"
    SALT = "cache_salt"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE[self]


_ADVICE = {
    Cause.CLOCK: "put dates and times at the end of the prompt, or leave them out",
    Cause.RANDOM_ID: "put ids at the end of the prompt, or leave them out",
    Cause.FIELD: "put what differs from user to user behind what does not, as in a last message",
    Cause.TOOL_ORDER: "give the tools in one order, as sorted by name",
    Cause.KEY_ORDER: "write the keys of objects in one order, as with sort_keys=True",
    Cause.TOOLS: "give the same tools each time; forbid calls where they are not wanted",
    Cause.TEMPLATE: "the chat template changes earlier turns as a chat grows; another may not",
    Cause.HISTORY: "drop old messages rarely and many at once, not one with every turn",
    Cause.SALT: "requests of different salts share nothing, as they are meant to",
}

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_HALF = r"(?:\s?(?:[AaPp][Mm]\b|[AaPp]\.[Mm]\.))?"
_TIME = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?{_HALF}"
_ZONE = r"(?:\s?(?:Z|UTC|GMT)\b|\s?[+-]\d{2}:?\d{2}\b)?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/]\d{1,2}[-/]\d{2,4}|\d{1,2}\.\d{1,2}\.\d{4}"
    rf"|{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}(?:,?\s\d{{4}})?)"
)
_INSTANT = rf"(?:{_DATE}|{_TIME}{_ZONE}|{_DAY})"
CLOCK = re.compile(
    rf"(?<![\w.]){_INSTANT}(?:(?:T|,?\s(?:at\s|the\s)?){_INSTANT})*|(?<![\w.])1\d{{9}}(?:\d{{3}}){{0,3}}\b"
)
"""Dates, times, days of the week, seconds (or milli- to nanoseconds) since 1970."""
RANDOM_ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"
    r"|\b[A-Za-z]{2,16}[-_](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{6,}\b"
    r"|\b(?=\w*\d)(?=\w*[a-zA-Z])[A-Za-z0-9]{16,}\b",
    re.IGNORECASE,
)
"""UUIDs, runs of hexadecimal digits, ids with a prefix, long mixtures of letters and digits."""


_WORD_START, _WORD_END = re.compile(r"^\w*"), re.compile(r"\w*$")


@dataclasses.dataclass(frozen=True, slots=True)
class Culprit:
    """Why two prompts part where they do, and what differs: a piece of each text."""

    cause: Cause
    one: str = ""
    other: str = ""
    widen: int = 0
    """Characters of the pieces that lie in front of the first that differs."""
    in_text: bool = False
    """Whether the pieces are in the texts, where these part."""
    around: tuple[str, str] | None = None
    """FIELD: what both system texts have before and behind the field."""


def culprit(one: Rendered, other: Rendered) -> Culprit | None:
    """The cause that breaks the prefix of two prompts, the later one last; None: not recognised."""
    if one.asked.salt != other.asked.salt:
        return Culprit(Cause.SALT, one.asked.salt or "", other.asked.salt or "")
    at = shared_start(one.text, other.text)
    if at == min(len(one.text), len(other.text)):
        return None
    if one.asked.messages is not None and other.asked.messages is not None:
        found = _rewritten(one, other) or _tools(one, other, at)
        if found is not None:
            return found
    return _in_text(one, other, at) or _field(one, other, at) or _history(one, other, at)


def extends(one: Rendered, other: Rendered) -> bool:
    """Whether ``other`` is a chat that goes on from ``one``: all its messages, and more."""
    first, second = one.asked, other.asked
    if first.messages is None or second.messages is None or first.tools != second.tools:
        return False
    count = len(first.messages)
    return count < len(second.messages) and second.messages[:count] == first.messages


def _rewritten(one: Rendered, other: Rendered) -> Culprit | None:
    """The chat goes on, and yet its text so far has changed."""
    if not extends(one, other):
        return None
    try:
        so_far = one.without_generation_prompt()
    except RequestError:
        return None
    if other.text.startswith(so_far.rstrip()):
        return None
    return Culprit(Cause.TEMPLATE)


def _tools(one: Rendered, other: Rendered, at: int) -> Culprit | None:
    """The tools differ, and so do the texts from there on."""
    first, second = one.asked.tools or (), other.asked.tools or ()
    if list(map(_exact, first)) == list(map(_exact, second)):
        return None
    parts = one.parts.at(at), other.parts.at(at)
    if any(part.kind in ("system", "message") for part in parts):
        return None
    if sorted(map(_exact, first)) == sorted(map(_exact, second)):
        return Culprit(Cause.TOOL_ORDER, _names(first), _names(second))
    if sorted(map(canonical, first)) == sorted(map(canonical, second)):
        return Culprit(Cause.KEY_ORDER)
    return Culprit(Cause.TOOLS, _names(first), _names(second))


def _in_text(one: Rendered, other: Rendered, at: int) -> Culprit | None:
    """A clock or a random id at the first difference."""
    for cause, pattern in ((Cause.CLOCK, CLOCK), (Cause.RANDOM_ID, RANDOM_ID)):
        first, second = (_match(pattern, text, at) for text in (one.text, other.text))
        if first is None or second is None or first[0] == second[0]:
            continue
        after = _rest(one, first.end()), _rest(other, second.end())
        if not _is_newest(other, at) or shared_start(*after) >= SAME_AFTER:
            return Culprit(cause, first[0], second[0], at - second.start(), in_text=True)
    return None


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """The match that the character at ``at`` lies in, or ends."""
    for match in pattern.finditer(text, max(0, at - LONGEST), at + LONGEST):
        if match.start() <= at <= match.end():
            return match
    return None


def _rest(rendered: Rendered, at: int) -> str:
    """What follows in the same part."""
    span = rendered.parts.span_at(at)
    return rendered.text[at : span.end if span is not None else None]


def _is_newest(rendered: Rendered, at: int) -> bool:
    """Whether a character is in the last message, the newest, which is expected to differ."""
    messages = rendered.asked.messages
    part = rendered.parts.at(at)
    return messages is not None and part.kind == "message" and part.index == len(messages) - 1


def _field(one: Rendered, other: Rendered, at: int) -> Culprit | None:
    """System texts that are the same but for a short piece."""
    spans = []
    for rendered in (one, other):
        part = rendered.parts.at(at)
        span = rendered.parts.span_of(part) if part.kind == "system" else None
        if span is None:
            return None
        spans.append(rendered.text[span.start : span.end])
    return field_of(*spans)


def field_of(one: str, other: str) -> Culprit | None:
    """The piece in which two texts that are mostly alike differ, in whole words."""
    before = shared_start(one, other)
    after = shared_end(one[before:], other[before:])
    widen = len(_WORD_END.findall(one[:before])[0])
    start = before - widen
    after -= len(_WORD_START.findall(one[len(one) - after :])[0])
    alike = start + after
    pieces = [text[start : len(text) - after] for text in (one, other)]
    if alike < max(map(len, pieces)):
        return None
    around = one[:start], one[len(one) - after :] if after else ""
    return Culprit(Cause.FIELD, pieces[0], pieces[1], widen, in_text=True, around=around)


def _history(one: Rendered, other: Rendered, at: int) -> Culprit | None:
    """The chat goes on, but without some of its first messages."""
    if other.parts.at(at).kind == "system" or kept_messages(one, other) is None:
        return None
    return Culprit(Cause.HISTORY)


def kept_messages(one: Rendered, other: Rendered) -> int | None:
    """How many of ``other``'s messages are the last ones of ``one``, whose first were dropped."""
    first, second = (
        [message for message in rendered.asked.messages or () if message["role"] != "system"]
        for rendered in (one, other)
    )
    system = len(other.asked.messages or ()) - len(second)
    for dropped in range(1, len(first)):
        if second[: len(first) - dropped] == first[dropped:]:
            return system + len(first) - dropped
    return None


def canonical(value: Any) -> str:
    """JSON that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _exact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _names(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = (tool.get("function", tool) for tool in tools)
    return ", ".join(
        str(function.get("name", "?")) if isinstance(function, Mapping) else "?"
        for function in functions
    )
