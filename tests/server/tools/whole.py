"""Tool calls of a whole answer."""

from __future__ import annotations

from collections.abc import Callable

from kvreuse.server.tools.parser import ToolCall, ToolCallParser, new_call_id


def parse_tool_calls(
    text: str, template: str, make_id: Callable[[], str] = new_call_id
) -> tuple[str, list[ToolCall]]:
    """The content of a whole answer, and its calls, as :class:`ToolCallParser` finds them."""
    parser = ToolCallParser(template, make_id)
    content, calls = parser.push(text)
    rest, more = parser.finish()
    return content + rest, calls + more
