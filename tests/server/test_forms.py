"""Tools and structured outputs over HTTP, through the official client."""

from __future__ import annotations

import json
import re
from typing import Literal

import openai
import pydantic
import pytest
from openai import OpenAI
from openai.types.chat import (
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
    ChatCompletionToolUnionParam,
)

from .running import NAME

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the weather in Oslo?"}
]
TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]


class Person(pydantic.BaseModel):
    """What a JSON schema is made of."""

    name: str
    mood: Literal["glad", "sad"]


def arguments(call: object) -> dict[str, object]:
    """The arguments of a call to one of the tools, which keep to its schema."""
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.type == "function"
    assert call.id
    found: dict[str, object] = json.loads(call.function.arguments)
    assert set(found) == {"city", "days"}
    assert found["city"] in ("Oslo", "Rome")
    return found


@pytest.mark.parametrize("named", [True, False])
def test_a_call_that_must_be_made(client: OpenAI, named: bool) -> None:
    choice = {"type": "function", "function": {"name": "time"}} if named else "required"
    answer = client.chat.completions.create(  # type: ignore[call-overload]
        model=NAME, messages=MESSAGES, tools=TOOLS, tool_choice=choice, temperature=0
    )
    [told] = answer.choices
    assert told.finish_reason == "tool_calls"
    assert told.message.content is None
    [call] = told.message.tool_calls
    assert call.function.name in (["time"] if named else ["weather", "time"])
    arguments(call)
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model=NAME,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice=choice,
        temperature=0,
        stream=True,
    )
    chunks = [chunk.choices[0] for chunk in stream]
    assert not any(chunk.delta.content for chunk in chunks)
    [streamed] = [one for chunk in chunks for one in chunk.delta.tool_calls or []]
    assert streamed.index == 0
    assert streamed.function.name == call.function.name
    assert streamed.function.arguments == call.function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("parallel", [True, False])
def test_calls_that_an_answer_makes(client: OpenAI, parallel: bool) -> None:
    one = r'\{"name": "weather", "arguments": \{"city": "(Oslo|Rome)", "days": [1-9]\}\}'
    form = {"regex": rf"Yes\. <tool_call>\[{one}, {one}\]</tool_call>"}
    answer = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        tools=TOOLS,
        parallel_tool_calls=parallel,
        temperature=0,
        extra_body={"structured_outputs": form},
    )
    [told] = answer.choices
    assert told.finish_reason == "tool_calls"
    assert told.message.content == "Yes."
    assert told.message.tool_calls is not None
    assert len(told.message.tool_calls) == (2 if parallel else 1)
    for call in told.message.tool_calls:
        arguments(call)
    for more in ({"tool_choice": "none"}, {"tools": None}):
        plain = client.chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            temperature=0,
            extra_body={"structured_outputs": form},
            **({"tools": TOOLS} | more),
        )
        assert plain.choices[0].message.tool_calls is None
        assert (plain.choices[0].message.content or "").startswith("Yes. <tool_call>")


def test_a_schema(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=NAME, messages=MESSAGES, response_format=Person, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"


def test_any_json(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=300,
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    assert (answer.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ({"choice": ["red", "blue sky"]}, "red|blue sky"),
        ({"grammar": 'start: "a"~2 " " /[xyz]/'}, "aa [xyz]"),
        ({"json": {"type": "integer", "minimum": 10, "maximum": 99}}, "[0-9]{2}"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_vllms_forms(client: OpenAI, form: dict[str, object], pattern: str) -> None:
    extra = {"structured_outputs": form}
    chat = client.chat.completions.create(model=NAME, messages=MESSAGES, extra_body=extra, seed=1)
    assert re.fullmatch(pattern, chat.choices[0].message.content or "")
    plain = client.completions.create(model=NAME, prompt="Say: ", extra_body=extra, n=2, seed=1)
    for choice in plain.choices:
        assert re.fullmatch(pattern, choice.text)


@pytest.mark.parametrize(
    "extra",
    [
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"grammar": "start: nowhere"}},
        {"structured_outputs": {"json": {"type": "nothing"}}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}},
        {"tools": TOOLS, "tool_choice": "always"},
        {"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"regex": "a"}},
    ],
    ids=lambda value: str(value)[:60],
)
def test_forms_that_cannot_be(client: OpenAI, extra: dict[str, object]) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(
                model=NAME, messages=MESSAGES, extra_body=extra, stream=stream
            )
        assert raised.value.message
