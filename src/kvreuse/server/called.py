"""Tool calls in answers: which texts may hold them, and what they are then."""

from __future__ import annotations

import dataclasses
import importlib
import json
import uuid
from typing import Any

from kvreuse.model.chat import ChatTemplate

from .schema.chat import ChatRequest, ToolChoice
from .schema.replies import CalledTool


@dataclasses.dataclass(frozen=True, slots=True)
class Calls:
    """How the calls of a request's answers are found."""

    template: str | None = None
    """The source of the chat template, where the model may call; it tells the form."""
    named: str | None = None
    """The function whose arguments the whole answer is."""
    listed: bool = False
    """Whether the whole answer is a JSON array of calls."""

    @classmethod
    def of(cls, asked: ChatRequest, template: ChatTemplate | None) -> Calls:
        """For one request."""
        choice = asked.tool_choice
        if isinstance(choice, ToolChoice):
            return cls(named=choice.function.name)
        if choice == "required":
            return cls(listed=True)
        if not asked.tools or choice == "none" or template is None:
            return cls()
        return cls(template=template.source)


def calls_of(how: Calls, text: str) -> tuple[str | None, list[CalledTool]]:
    """The content of a whole answer, and its calls; no content where there are calls only."""
    if how.named is not None:
        return None, [_called(how.named, text)]
    if how.listed:
        return None, _listed(text)
    if how.template is None:
        return text, []
    tools = importlib.import_module("kvreuse.server.tools")
    content, calls = tools.parse_tool_calls(text, how.template)
    found = [_called(call.name, call.arguments, call.id) for call in calls]
    return (content or None) if found else content, found


class CallStream:
    """The same for an answer as it grows."""

    def __init__(self, how: Calls) -> None:
        self._how = how
        self._text = ""
        self._parser: Any = None
        if how.template is not None:
            tools = importlib.import_module("kvreuse.server.tools")
            self._parser = tools.ToolCallParser(how.template)
        self.called = 0
        """Calls so far."""

    def push(self, text: str, *, last: bool) -> tuple[str, list[CalledTool]]:
        """Content and calls that ``text`` makes certain; ``last``: nothing follows it."""
        if self._how.named is not None or self._how.listed:
            self._text += text
            calls = calls_of(self._how, self._text)[1] if last else []
            return "", self._numbered(calls)
        if self._parser is None:
            return text, []
        content, found = self._parser.push(text)
        if last:
            rest, more = self._parser.finish()
            content, found = content + rest, [*found, *more]
        return content, self._numbered([_called(c.name, c.arguments, c.id) for c in found])

    def _numbered(self, calls: list[CalledTool]) -> list[CalledTool]:
        for call in calls:
            call["index"] = self.called
            self.called += 1
        return calls


def _listed(text: str) -> list[CalledTool]:
    """The calls of a JSON array, as far as it was written."""
    try:
        calls: Any = json.loads(text)
    except ValueError:  # it was cut by its length
        return []
    return [_called(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in calls]


def _called(name: str, arguments: str, call_id: str | None = None) -> CalledTool:
    return {
        "id": call_id or f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
