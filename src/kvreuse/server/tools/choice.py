"""``tool_choice``: a grammar of one call, as the model's family writes calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.engine.answer.guide.grammars import JSON_STYLE
from kvreuse.errors import RequestError
from kvreuse.server.tools.formats import ToolFormat, tool_format
from kvreuse.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]
ToolChoice = str | Mapping[str, Any] | None


def forced_call(
    tools: Tools, choice: ToolChoice, template: str, tokenizer: Tokenizer
) -> StructuredOutputs | None:
    """The form for ``tool_choice``; None where nothing is forced (``none``, ``auto`` or None).

    ``tools`` and ``choice`` are those of the OpenAI API, ``template`` is the source of the chat
    template. RequestError for a choice that is none, or that the model cannot be made to follow.
    """
    if choice in (None, "none", "auto"):
        return None
    functions = [_function(tool, index) for index, tool in enumerate(tools)]
    if choice != "required":
        functions = [_named(functions, choice)]
    if not functions:
        raise RequestError("tool_choice 'required' needs tools to choose from")
    form = tool_format(template)
    if form is None:
        raise RequestError(
            "a tool_choice that forces a call needs a chat template that says how calls are written"
        )
    return StructuredOutputs(grammar=call_grammar(form, functions, tokenizer))


def needs_special_tokens(template: str, tokenizer: Tokenizer) -> bool:
    """Whether calls begin with a special token: the text of an answer must not leave it out."""
    form = tool_format(template)
    return form is not None and _special_id(form.opening, tokenizer) is not None


def call_grammar(
    form: ToolFormat, functions: Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> str:
    """A Lark grammar of one call to one of ``functions``: {name, parameters}."""
    special = _special_id(form.opening, tokenizer)
    parts = [] if form.before == "" else [json.dumps(form.before)]
    if special is not None and form.before.startswith(form.opening):
        rest = form.before.removeprefix(form.opening)
        parts = [f"<[{special}]>", *([json.dumps(rest)] if rest else [])]
    parts += ['"["'] if form.listed else []
    parts += ["call"]
    parts += ['"]"'] if form.listed else []
    parts += [json.dumps(form.after)] if form.after else []
    lines = [f"start: {' '.join(parts)}"]
    lines += [f"call: {' | '.join(f'call{index}' for index in range(len(functions)))}"]
    for index, function in enumerate(functions):
        name = json.dumps(function["name"], ensure_ascii=False)
        head = f'{{"name": {name}, "{form.arguments}": '
        lines += [f'call{index}: {json.dumps(head, ensure_ascii=False)} arguments{index} "}}"']
        lines += [f"arguments{index}: %json {json.dumps(_schema(function), ensure_ascii=False)}"]
    return "\n".join(lines)


def _special_id(text: str, tokenizer: Tokenizer) -> int | None:
    """The special token that reads ``text``, if it is one; a user-defined one is text."""
    token = tokenizer.literal_id(text)
    return token if token is not None and tokenizer.is_special(token) else None


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the arguments: an object in our style, an empty one where nothing is said."""
    parameters = function.get("parameters") or {"type": "object", "additionalProperties": False}
    return {"type": "object", "x-guidance": JSON_STYLE, **parameters}


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    """The function of a tool. RequestError unless it has one with a name."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        parameters = function.get("parameters")
        if parameters is None or isinstance(parameters, Mapping):
            return function
    raise RequestError(
        f"tools[{index}] must be {{'type': 'function', 'function': {{'name': ..., "
        "'parameters': a JSON schema}}}"
    )


def _named(functions: Sequence[Mapping[str, Any]], choice: Any) -> Mapping[str, Any]:
    """The function that ``tool_choice`` names. RequestError if there is none."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}"
        )
    for one in functions:
        if one["name"] == name:
            return one
    raise RequestError(f"tool_choice names the function {name!r}, which is not among the tools")
