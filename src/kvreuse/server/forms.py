"""The form that an answer must have, out of the fields that may ask for one."""

from __future__ import annotations

import importlib
import json
from typing import Any

from .errors import APIError
from .schema.chat import ChatRequest, Tool, ToolChoice
from .schema.fields import ResponseFormat, Sampling, Structure


def form_of(asked: Sampling) -> Any:
    """What ``response_format`` or ``structured_outputs`` asks for. APIError for both."""
    wanted = asked.response_format is not None and asked.response_format.type != "text"
    if wanted and asked.structured_outputs is not None:
        message = "give one of response_format and structured_outputs"
        raise APIError(400, message, code="invalid_value", param="structured_outputs")
    if asked.structured_outputs is not None:
        return _structure(asked.structured_outputs)
    return _format(asked.response_format) if asked.response_format is not None else None


def chat_form(asked: ChatRequest) -> Any:
    """The same for a chat, in which a tool may have to be called."""
    form, choice = form_of(asked), asked.tool_choice
    if choice != "required" and not isinstance(choice, ToolChoice):
        return form
    if form is not None:
        message = "give one of a tool that must be called and a form of the answer"
        raise APIError(400, message, code="invalid_value", param="tool_choice")
    tools = {tool.function.name: tool for tool in asked.tools or ()}
    if isinstance(choice, ToolChoice):
        return _form(json=_parameters(tools[choice.function.name]))
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": _parameters(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, tool in tools.items()
    ]
    most = {"maxItems": 1} if asked.parallel_tool_calls is False else {}
    schema = {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
    return _form(json=_with_definitions(schema, list(tools.values())))


def _parameters(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    parameters = tool.function.parameters or {}
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _with_definitions(schema: dict[str, Any], tools: list[Tool]) -> dict[str, Any]:
    """``schema`` with the definitions that the tools' schemas refer to from their root."""
    found: dict[str, Any] = {}
    for tool in tools:
        found |= (tool.function.parameters or {}).get("$defs", {})
    return schema | {"$defs": found} if found else schema


def _format(wanted: ResponseFormat) -> Any:
    if wanted.type == "json_object":
        return _form(json_object=True)
    if wanted.type == "text":
        return None
    if wanted.json_schema is None:
        message = "response_format of type json_schema needs json_schema"
        raise APIError(400, message, code="invalid_value", param="response_format")
    return _form(json=json.dumps(wanted.json_schema.json_schema))


def _structure(wanted: Structure) -> Any:
    return _form(
        json=wanted.json_,
        json_object=bool(wanted.json_object),
        regex=wanted.regex,
        choice=tuple(wanted.choice) if wanted.choice else None,
        grammar=wanted.grammar,
    )


def _form(**fields: Any) -> Any:
    """A form."""
    return importlib.import_module("kvreuse.structured_outputs").StructuredOutputs(**fields)
