"""``tool_choice``: calls that a model has no choice but to make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvreuse import LLM, SamplingParams
from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.engine.answer.guide.guide import Guides
from kvreuse.errors import RequestError
from kvreuse.server.tools.choice import call_grammar, forced_call, needs_special_tokens
from kvreuse.server.tools.formats import LLAMA, MISTRAL
from kvreuse.text.tokenizer import Tokenizer

from .test_parser import TEMPLATES
from .whole import parse_tool_calls

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    """The real model."""
    with LLM(model_path, kv_cache_memory="64MiB", threads=1) as loaded:
        yield loaded


def source_of(llm: LLM) -> str:
    assert llm.chat_template is not None
    return llm.chat_template.source


@pytest.mark.parametrize("family", [None, *TEMPLATES])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_is_one_of_the_family(llm: LLM, family: str | None, choice: Any) -> None:
    template = source_of(llm) if family is None else TEMPLATES[family]
    form = forced_call(TOOLS, choice, template, llm.tokenizer)
    for params in (
        SamplingParams(temperature=0, max_tokens=100, structured_outputs=form),
        SamplingParams(seed=5, max_tokens=100, structured_outputs=form),
    ):
        said = llm.chat(ASKED, params)[0].outputs[0]
        assert said.finish_reason == "stop"
        content, (call,) = parse_tool_calls(said.text, template)
        assert content == ""
        if choice == NAMED or call.name == "get_weather":
            assert call.name == "get_weather"
            jsonschema.validate(json.loads(call.arguments), WEATHER)
        else:
            assert (call.name, call.arguments) == ("now", "{}")


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_nothing_is_forced_otherwise(llm: LLM, choice: str | None) -> None:
    assert forced_call(TOOLS, choice, source_of(llm), llm.tokenizer) is None


class Marked(Tokenizer):
    """A copy of a tokenizer, in which ``[TOOL_CALLS]`` is a special token with the id 0."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vars(self).update(vars(tokenizer))

    def literal_id(self, text: str) -> int | None:
        return 0 if text == "[TOOL_CALLS]" else super().literal_id(text)


def test_a_special_token_begins_the_call_where_there_is_one(llm: LLM) -> None:
    assert not needs_special_tokens(TEMPLATES["mistral"], llm.tokenizer)
    marked = Marked(llm.tokenizer)
    assert marked.is_special(0)
    assert needs_special_tokens(TEMPLATES["mistral"], marked)
    assert not needs_special_tokens("{{ messages }}", marked)
    grammar = call_grammar(MISTRAL, [{"name": "f"}], marked)
    guide = Guides(marked, llm.shape.vocab_size).guide(StructuredOutputs(grammar=grammar))
    assert guide is not None
    assert guide.allowed.nonzero()[0].tolist() == [0]
    guide.accept(0)
    for token in llm.tokenizer.encode('[{"name": "f", "arguments": {}}]'):
        assert guide.allowed[token]
        guide.accept(token)
    assert guide.complete


def test_a_name_of_any_characters_is_written_as_json(llm: LLM) -> None:
    name = 'the "best" \\ tööl'
    grammar = call_grammar(LLAMA, [{"name": name}], llm.tokenizer)
    params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputs(grammar=grammar))
    (said,) = llm.generate("x", params)
    _, (call,) = parse_tool_calls(said.outputs[0].text, TEMPLATES["llama"])
    assert call.name == name


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "required", "tool_choice 'required' needs tools to choose from"),
        (TOOLS, "always", "tool_choice must be 'none', 'auto', 'required' or"),
        (TOOLS, {"type": "function"}, "tool_choice must be 'none', 'auto', 'required' or"),
        (TOOLS, {"function": {"name": "g"}}, "tool_choice names the function 'g', which is not"),
        ([{"type": "function"}], "required", r"tools\[0\] must be {'type': 'function'"),
        ([TOOLS[0], {"function": {"name": 5}}], "required", r"tools\[1\] must be"),
        ([{"function": {"name": "f", "parameters": []}}], "required", r"tools\[0\] must be"),
    ],
)
def test_choices_that_cannot_be(llm: LLM, tools: list[Any], choice: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        forced_call(tools, choice, source_of(llm), llm.tokenizer)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_form_of_calls_cannot_be_forced(llm: LLM) -> None:
    with pytest.raises(RequestError, match="needs a chat template that says how calls are written"):
        forced_call(TOOLS, "required", "{{ messages }}", llm.tokenizer)
