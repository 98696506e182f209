"""Tool calls in answers, as replies contain them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvreuse.server.schema.chat import ChatRequest
from kvreuse.server.schema.replies import CalledTool
from kvreuse.server.tools.parser import ToolCall, ToolCallParser
from kvreuse.text.chat import ChatTemplate


@dataclasses.dataclass(frozen=True, slots=True)
class Calls:
    """How the calls of a request's answers are found."""

    template: str | None = None
    """The source of the chat template, which determines their format; None: there are no calls."""
    most: int | None = None
    """The number of calls of an answer that are reported; None: all."""

    @classmethod
    def of(cls, asked: ChatRequest, template: ChatTemplate | None) -> Calls:
        """For one request."""
        if not asked.tools or asked.tool_choice == "none" or template is None:
            return cls()
        return cls(template.source, 1 if asked.parallel_tool_calls is False else None)


def calls_of(how: Calls, text: str) -> tuple[str | None, list[CalledTool]]:
    """The content of a whole answer, and its calls; None where there are calls only."""
    stream = CallStream(how)
    content, calls = stream.push(text, last=True)
    for call in calls:
        del call["index"]
    return (content or None) if calls else content, calls


class CallStream:
    """The same for an answer as it grows."""

    def __init__(self, how: Calls) -> None:
        self._most = how.most
        self._parser = ToolCallParser(how.template) if how.template is not None else None
        self.called = 0
        """Number of calls so far."""

    def push(self, text: str, *, last: bool) -> tuple[str, list[CalledTool]]:
        """The content and calls that are complete with ``text``; ``last``: nothing follows."""
        if self._parser is None:
            return text, []
        content, calls = self._parser.push(text)
        if last:
            rest, more = self._parser.finish()
            content, calls = content + rest, [*calls, *more]
        return content, self._reported(calls)

    def _reported(self, calls: Sequence[ToolCall]) -> list[CalledTool]:
        if self._most is not None:
            calls = calls[: self._most - self.called]
        reported: list[CalledTool] = [
            {
                "index": call.index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
        self.called += len(reported)
        return reported
