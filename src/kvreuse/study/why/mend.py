"""Mend: what requests would be without what breaks their prefixes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvreuse.study.why.asked import Asked
from kvreuse.study.why.culprits import CLOCK, RANDOM_ID, Cause, Culprit, canonical

Field = tuple[str, str]
"""What system texts have before and behind a piece in which they differ."""
MOST_FIELDS = 64
"""Different fields that are mended, so that the work stays in proportion."""

REWRITTEN = (Cause.CLOCK, Cause.RANDOM_ID, Cause.FIELD, Cause.TOOL_ORDER, Cause.KEY_ORDER)
"""Causes that are mended by writing requests differently."""


@dataclasses.dataclass(slots=True)
class Findings:
    """Where in the requests of a log each cause was seen: only there is it mended."""

    places: dict[Cause, set[str]] = dataclasses.field(default_factory=dict)
    """Kinds of parts; of messages, their roles."""
    fields: dict[Field, None] = dataclasses.field(default_factory=dict)

    def take(self, found: Culprit, place: str) -> None:
        """One culprit, in one kind of part."""
        self.places.setdefault(found.cause, set()).add(place)
        if found.around is not None and len(self.fields) < MOST_FIELDS:
            self.fields[found.around] = None

    def mended(self, asked: Asked, causes: Iterable[Cause]) -> Asked:
        """``asked`` without these causes; ``asked`` itself where nothing had to be changed."""
        for cause in causes:
            asked = self._mended(asked, cause)
        return asked

    def _mended(self, asked: Asked, cause: Cause) -> Asked:
        places = self.places.get(cause, set())
        if cause is Cause.CLOCK:
            return _with_texts(asked, places, lambda text: CLOCK.sub("(time)", text))
        if cause is Cause.RANDOM_ID:
            return _with_texts(asked, places, lambda text: RANDOM_ID.sub("(id)", text))
        if cause is Cause.FIELD:
            return _with_texts(asked, {"system"}, self._without_field)
        if cause is Cause.TOOL_ORDER and asked.tools:
            return _changed(asked, tools=tuple(sorted(asked.tools, key=canonical)))
        if cause is Cause.KEY_ORDER and asked.tools:
            return _changed(asked, tools=tuple(map(_sorted, asked.tools)))
        return asked

    def _without_field(self, text: str) -> str:
        for before, behind in self.fields:
            fits = len(text) >= len(before) + len(behind)
            if fits and text.startswith(before) and text.endswith(behind):
                return f"{before}(field){behind}"
        return text


def place_of(kind: str, role: str | None) -> str:
    """How :class:`Findings` names a part."""
    return role or kind if kind == "message" else kind


def _with_texts(asked: Asked, places: set[str], change: Callable[[str], str]) -> Asked:
    """``asked`` with the texts in these places changed; a plain prompt has one, of any place."""
    if asked.messages is None:
        if asked.prompt is None or asked.prompt_ids is not None:
            return asked
        return _changed(asked, prompt=change(asked.prompt))
    messages = tuple(
        _in_message(message, change) if _place(index, message) in places else message
        for index, message in enumerate(asked.messages)
    )
    tools = asked.tools
    if "tool" in places and tools:
        tools = tuple(_in_all(tool, change) for tool in tools)
    return _changed(asked, messages=messages, tools=tools)


def _place(index: int, message: Mapping[str, Any]) -> str:
    is_system = index == 0 and message["role"] in ("system", "developer")
    return "system" if is_system else str(message["role"])


def _in_message(message: Mapping[str, Any], change: Callable[[str], str]) -> Mapping[str, Any]:
    content = message.get("content")
    return {**message, "content": change(content)} if isinstance(content, str) else message


def _in_all(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _in_all(inner, change) for key, inner in value.items()}
    return [_in_all(inner, change) for inner in value] if isinstance(value, list) else value


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


def _changed(asked: Asked, **changes: Any) -> Asked:
    changed = dataclasses.replace(asked, **changes)
    # Dictionaries are equal whatever the order of their keys, but their text is not.
    return asked if changed == asked and str(changed.tools) == str(asked.tools) else changed
