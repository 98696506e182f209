"""Tool calls in the text of an answer, found while it streams."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable
from typing import Any

from kvreuse.server.tools.formats import ToolFormat, tool_format
from kvreuse.server.tools.json_extent import JsonExtent


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. ``arguments`` is the text of a JSON object; ``index`` counts an answer's calls."""

    index: int
    id: str
    name: str
    arguments: str


def new_call_id() -> str:
    """An id for a call: nine letters and digits, the form that the strictest template asks for."""
    return secrets.token_hex(5)[:9]


class ToolCallParser:
    """Takes the text of one answer in pieces; gives out content and complete calls.

    However the text is cut, all its content and all its calls are the same. Blanks around a call
    belong to neither. What looks like a call and is none, since its JSON is broken or lacks a name
    or arguments, is content like any other text. Content waits only while it may turn out to be a
    call.
    """

    def __init__(self, template: str, make_id: Callable[[], str] = new_call_id) -> None:
        """``template`` is the source of the chat template; ``make_id`` makes ids for calls.

        Where the template shows no known format, all text is content.
        """
        self._form = tool_format(template)
        self._make_id = make_id
        self._pending = ""  # not given out yet
        self._read = self._between if self._form is not None else self._all  # what comes next
        self._extent = JsonExtent()  # of the JSON of a call that may have begun
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._num_calls = 0

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The content and the calls that are complete with ``text``."""
        return self._take(text, last=False)

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The remaining content and calls, once the answer has ended."""
        return self._take("", last=True)

    def _take(self, text: str, *, last: bool) -> tuple[str, list[ToolCall]]:
        self._pending += text
        while self._pending and self._read(last):
            pass
        content, calls = "".join(self._content), self._calls
        self._content, self._calls = [], []
        return content, calls

    def _all(self, last: bool) -> bool:
        """Text without calls."""
        self._give(len(self._pending))
        return True

    def _between(self, last: bool) -> bool:
        """At the start of an answer, or after a call: another call, its separator, or content."""
        form, text = self._known, self._pending.lstrip()
        blanks = len(self._pending) - len(text)
        skipped = form.behind if self._num_calls else ""
        if skipped and text.startswith(skipped):
            self._pending = text[len(skipped) :]
            return True
        if text.startswith(form.opening):
            return self._begin(blanks + len(form.opening))
        if form.bare and text.startswith("{"):
            return self._begin(blanks)
        undecided = not text or form.opening.startswith(text) or skipped.startswith(text)
        if undecided and not last:
            return False
        if self._num_calls:
            self._pending = text
        self._read = self._in_content
        return True

    def _in_content(self, last: bool) -> bool:
        """Give out content, up to a possible call and the blanks before it."""
        text, opening = self._pending, self._known.opening
        found = text.find(opening)
        if found >= 0:
            before = len(text[:found].rstrip())
            self._give(before)
            return self._begin(found - before + len(opening))
        safe = text if last else text[: len(text) - _held_length(text, opening)].rstrip()
        self._give(len(safe))
        return False

    def _begin(self, start: int) -> bool:
        """The JSON of a call may begin at ``start``, or behind blanks there."""
        self._extent = JsonExtent()
        self._extent.at = self._start = start
        self._read = self._in_call
        return True

    def _in_call(self, last: bool) -> bool:
        """A call, up to the last bracket of its JSON."""
        extent = self._extent
        extent.follow(self._pending)
        if extent.ended is None and not last:
            return False
        calls = _read_calls(self._pending[self._start : extent.at]) if extent.ended else []
        if calls:
            for name, arguments, its_id in calls:
                call = ToolCall(self._num_calls, its_id or self._make_id(), name, arguments)
                self._calls.append(call)
                self._num_calls += 1
            self._pending = self._pending[extent.at :]
            self._read = self._between
        else:
            self._give(extent.at)
            self._read = self._in_content
        return True

    @property
    def _known(self) -> ToolFormat:
        assert self._form is not None
        return self._form

    def _give(self, count: int) -> None:
        """So many characters are content."""
        self._content.append(self._pending[:count])
        self._pending = self._pending[count:]


def _read_calls(text: str) -> list[tuple[str, str, str | None]]:
    """(name, arguments as JSON, id if it has one) of a call or a list of them; none if any is no
    call."""
    try:
        # Models write line breaks into strings as they are.
        value = json.loads(text, strict=False, parse_constant=_no_constant)
        calls = [_read_call(one) for one in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):
        return []
    return calls


def _read_call(value: Any) -> tuple[str, str, str | None]:
    """One call. ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError("a call must be an object")
    name, call_id = value.get("name"), value.get("id")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # JSON within JSON
        arguments = json.loads(arguments, strict=False, parse_constant=_no_constant)
    if not (isinstance(name, str) and name and isinstance(arguments, dict)):
        raise ValueError("a call must have a name and arguments")
    name.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
    text = json.dumps(arguments, ensure_ascii=False)
    text = text if text.isascii() or _encodable(text) else json.dumps(arguments)
    usable = isinstance(call_id, str) and call_id.isalnum() and call_id.isascii()
    return name, text, call_id if usable else None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _held_length(text: str, opening: str) -> int:
    """Length of the longest end of ``text`` that is a proper prefix of ``opening``."""
    lengths = range(min(len(opening) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(opening[:length])), 0)
