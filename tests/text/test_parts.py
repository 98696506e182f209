"""Parts of a prompt: for the real models' templates, and for templates that make it hard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.model.open import open_checkpoint
from kvreuse.text.chat import ChatTemplate, chat_template
from kvreuse.text.chat_defaults import CHATML, GEMMA, LLAMA3
from kvreuse.text.parts import TEMPLATE, Part, PromptParts, prompt_parts
from kvreuse.text.tokenizer import Tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What it is like there.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "traffic")
]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "user"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Is it \u4f60\u597d?"},
]
PRINTS_TOOLS = (
    "{% if tools %}{{ 'Tools: ' + (tools | tojson) + '\n' }}{% endif %}" + CHATML,
    "{% for tool in tools or [] %}{{ tool | tojson(indent=4) + '\n' }}{% endfor %}" + CHATML,
    "{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}"
    "{% endfor %}" + CHATML,
)


def parts_of(source: str, messages: Any = CHAT, tools: Any = None) -> tuple[str, PromptParts]:
    template = ChatTemplate(source, bos_token="<s>")
    text = template.render(messages, tools=tools)
    return text, prompt_parts(template, text, messages, tools=tools)


def told(text: str, parts: PromptParts) -> dict[str, str]:
    return {str(span.part): text[span.start : span.end] for span in parts.spans}


WHOLE = {
    "system text": "Be brief.",
    "message 2 (user)": "user",
    "message 3 (assistant)": "Yes.",
    "message 4 (user)": "Is it \u4f60\u597d?",
}


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA], ids=["chatml", "llama3", "gemma"])
def test_every_message_is_found_and_the_rest_is_the_template(source: str) -> None:
    text, parts = parts_of(source)
    assert told(text, parts) == WHOLE
    covered = {at for span in parts.spans for at in range(span.start, span.end + 1)}
    for at in range(len(text)):
        assert (parts.at(at) == TEMPLATE) == (at not in covered)
    span = parts.span_of(Part("message", 3, "user"))
    assert span is not None
    assert text[span.start : span.end] == CHAT[3]["content"]
    assert parts.span_of(Part("message", 9, "user")) is None


@pytest.mark.parametrize("source", PRINTS_TOOLS, ids=["list", "indented", "by field"])
def test_every_tool_is_found(source: str) -> None:
    text, parts = parts_of(source, tools=TOOLS)
    found = told(text, parts)
    for number, name in enumerate(("weather", "traffic"), start=1):
        assert name in found[f"tool {number}"]
        assert "like there" in found[f"tool {number}"]
    if "tojson" in source:
        assert found["tool 1"].startswith("{")
        assert found["tool 1"].endswith("}")
    assert found["system text"] == "Be brief."


HARD = {
    "looks at the start": "{% if message.content.startswith('Is it') %}Q: {% endif %}",
    "looks at the end": "{% if message.content.endswith('?') %}Q: {% endif %}",
}


@pytest.mark.parametrize("condition", HARD.values(), ids=HARD)
def test_templates_that_look_at_their_texts(condition: str) -> None:
    source = "{% for message in messages %}" + condition + "[{{ message.content | trim }}]"
    text, parts = parts_of(source + "{% endfor %}")
    assert "Q: [Is it" in text
    assert told(text, parts) == WHOLE


def test_a_template_that_cuts_thoughts_off() -> None:
    source = "{% for m in messages %}<{{ m.content.split('</think>')[-1] }}>{% endfor %}"
    thought = {"role": "assistant", "content": "<think>hm, hm</think>Yes, it is."}
    text, parts = parts_of(source, [CHAT[1], thought, CHAT[3]])
    assert text == "<user><Yes, it is.><Is it \u4f60\u597d?>"
    assert told(text, parts)["message 2 (assistant)"] == "Yes, it is."


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | length }} {% endfor %}",
        "{% for m in messages %}{{ m.content | replace('a', '') | upper }}{% endfor %}",
        "{{ messages | length }}",
    ],
)
def test_a_template_that_defeats_it_is_all_template(source: str) -> None:
    text, parts = parts_of(source)
    assert parts.spans == ()
    assert parts.at(len(text) // 2) == TEMPLATE
    assert str(parts.at(0)) == "template"


def test_pieces_of_content_and_calls_of_tools() -> None:
    source = (
        "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for piece in m.content or [] %}{{ piece.text }}|{% endfor %}{% endif %}"
        "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}]{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "2"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    text, parts = parts_of(source, messages)
    assert told(text, parts) == {
        "message 1 (user)": "One|2",
        "message 2 (assistant)": 'f", "arguments": "{\\"a\\": 1}',
        "message 3 (tool)": "3",
    }


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5),
    source=st.sampled_from([CHATML, LLAMA3, GEMMA]),
)
def test_any_content_is_found_where_it_is(contents: list[str], source: str) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    text, parts = parts_of(source, messages)
    found = told(text, parts)
    for number, content in enumerate(contents, start=1):
        assert found.get(f"message {number} (user)", "") == content.strip()


def test_the_real_models_template(real_model: Path) -> None:
    with open_checkpoint(real_model) as checkpoint:
        template = chat_template(checkpoint.chat_templates, Tokenizer(checkpoint.vocabulary))
    assert template is not None
    text = template.render(CHAT, tools=TOOLS)
    found = told(text, prompt_parts(template, text, CHAT, tools=TOOLS))
    assert WHOLE.items() <= found.items()
