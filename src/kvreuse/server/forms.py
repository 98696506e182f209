"""The form that an answer must have, from the fields of a body that may ask for one."""

from __future__ import annotations

import json

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.llm import LLM
from kvreuse.server.errors import APIError
from kvreuse.server.schema.chat import ChatRequest, ToolChoice
from kvreuse.server.schema.fields import ResponseFormat, Sampling, Structure
from kvreuse.server.tools.choice import forced_call, needs_special_tokens


def form_of(asked: Sampling, llm: LLM) -> StructuredOutputs | None:
    """The form that ``response_format`` or ``structured_outputs`` asks for, compiled.

    APIError where both are given, RequestError for a form that cannot be followed. It may take
    seconds.
    """
    return _ready(_asked(asked), llm)


def chat_form(asked: ChatRequest, llm: LLM) -> StructuredOutputs | None:
    """The same for a chat, which ``tool_choice`` may force to call a tool."""
    form, choice = _asked(asked), asked.tool_choice
    if choice is None or not _forces_call(choice) or llm.chat_template is None:
        return _ready(form, llm)
    if form is not None:
        message = "give one of a tool that must be called and a form of the answer"
        raise APIError(400, message, code="invalid_value", param="tool_choice")
    tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
    plain = choice if isinstance(choice, str) else choice.model_dump()
    return _ready(forced_call(tools, plain, llm.chat_template.source, llm.tokenizer), llm)


def skips_special_tokens(asked: ChatRequest, llm: LLM) -> bool | None:
    """Whether the text leaves out special tokens. It must not where tool calls begin with one."""
    template = llm.chat_template
    if (
        asked.tools
        and template is not None
        and needs_special_tokens(template.source, llm.tokenizer)
    ):
        return False
    return asked.skip_special_tokens


def compiles_form(asked: Sampling) -> bool:
    """Whether ``form_of`` compiles a grammar."""
    wanted = asked.response_format
    return asked.structured_outputs is not None or (wanted is not None and wanted.type != "text")


def compiles_chat_form(asked: ChatRequest) -> bool:
    """Whether ``chat_form`` compiles a grammar. A choice that forces no call needs none."""
    return compiles_form(asked) or _forces_call(asked.tool_choice)


def _forces_call(choice: str | ToolChoice | None) -> bool:
    return isinstance(choice, ToolChoice) or choice == "required"


def _ready(form: StructuredOutputs | None, llm: LLM) -> StructuredOutputs | None:
    """``form``, compiled now, so that the engine's thread need not do it."""
    llm.engine.guides.guide(form)
    return form


def _asked(asked: Sampling) -> StructuredOutputs | None:
    wanted = asked.response_format is not None and asked.response_format.type != "text"
    if wanted and asked.structured_outputs is not None:
        message = "give one of response_format and structured_outputs"
        raise APIError(400, message, code="invalid_value", param="structured_outputs")
    if asked.structured_outputs is not None:
        return _structure(asked.structured_outputs)
    return _format(asked.response_format) if asked.response_format is not None else None


def _format(wanted: ResponseFormat) -> StructuredOutputs | None:
    if wanted.type == "json_object":
        return StructuredOutputs(json_object=True)
    if wanted.type == "text":
        return None
    if wanted.json_schema is None:
        message = "response_format of type json_schema needs json_schema"
        raise APIError(400, message, code="invalid_value", param="response_format")
    return StructuredOutputs(json=json.dumps(wanted.json_schema.json_schema))


def _structure(wanted: Structure) -> StructuredOutputs:
    return StructuredOutputs(
        json=wanted.json_,
        json_object=bool(wanted.json_object),
        regex=wanted.regex,
        choice=tuple(wanted.choice) if wanted.choice else None,
        grammar=wanted.grammar,
    )
