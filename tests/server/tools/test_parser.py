"""Tool calls in texts of every family, however the texts are cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.server.tools.formats import HERMES, LLAMA, MISTRAL, SMOLLM, ToolFormat, tool_format
from kvreuse.server.tools.json_extent import MAX_DEPTH
from kvreuse.server.tools.parser import ToolCallParser, new_call_id

from .whole import parse_tool_calls

TEMPLATES = {
    "hermes": "{% if tools %}within <tool_call></tool_call> XML tags{% endif %}",
    "smollm": "a helpful AI assistant named SmolLM",
    "llama": "<|start_header_id|> {{ '<|python_tag|>' }}",
    "mistral": "{{ '[TOOL_CALLS]' }}",
}
Call = tuple[str, dict[str, Any]]
Parsed = tuple[str, list[tuple[int, str, str, Any]]]


def numbered() -> Callable[[], str]:
    count = itertools.count()
    return lambda: f"call{next(count)}"


def plain(content: str, calls: list[Any]) -> Parsed:
    return content, [(c.index, c.id, c.name, json.loads(c.arguments)) for c in calls]


def parse(text: str, family: str) -> Parsed:
    return plain(*parse_tool_calls(text, TEMPLATES[family], numbered()))


def parse_in_pieces(pieces: list[str], family: str) -> Parsed:
    parser = ToolCallParser(TEMPLATES[family], numbered())
    parts = [*(parser.push(piece) for piece in pieces), parser.finish()]
    return plain("".join(text for text, _ in parts), [c for _, calls in parts for c in calls])


def written(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


def in_family(family: str, calls: list[Call]) -> str:
    """What a model of the family says to make these calls."""
    if family == "hermes":
        return "\n".join(f"<tool_call>\n{written(call)}\n</tool_call>" for call in calls)
    if family == "llama":
        return "; ".join(written(call, "parameters") for call in calls)
    listed = "[" + ", ".join(map(written, calls)) + "]"
    return f"<tool_call>{listed}</tool_call>" if family == "smollm" else f"[TOOL_CALLS] {listed}"


TEXT = st.text('ab"\\{}[]</tool_call>é\n', max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "get_weather"]), st.dictionaries(TEXT, JSON, max_size=2)),
    min_size=1,
    max_size=3,
)
PROSE = st.sampled_from(["", "Let me look.", "a < b", "<tool", "[TOOL", "x; y", "1 {2} 3"])
# What texts with calls, halves of calls and things that look like them are made of.
SHARDS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            ";",
            " ",
            "\n",
            "<",
            "[",
        ),
        *(
            "{",
            "}",
            "]",
            '"',
            "\\",
            "Hello",
            '{"name": "f", "arguments": {"x": "}"}}',
            "é",
            "\u00a0",
        ),
        *('[{"name": "g", "arguments": {}}]', '{"name": "h", "parameters": {}}', '{"a": 1}', "nul"),
    ]
)


@pytest.mark.parametrize("family", TEMPLATES)
@given(data=st.data())
def test_any_cut_gives_the_same(family: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(SHARDS, max_size=12)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = parse(text, family)
    assert parse_in_pieces(pieces, family) == whole
    assert parse_in_pieces(list(text), family) == whole
    if not whole[1]:
        assert whole[0] == text  # without a call nothing of a text is lost


@pytest.mark.parametrize("family", TEMPLATES)
@given(calls=CALLS, before=PROSE, after=PROSE, ended=st.booleans())
def test_calls_come_back_as_they_were_made(
    family: str, calls: list[Call], before: str, after: str, ended: bool
) -> None:
    if family == "llama":  # which calls with its first words, or not at all
        before = after = ""
    said = in_family(family, calls)
    if not ended and not after:
        said = said.removesuffix("</tool_call>")  # an answer that was cut behind the JSON
    content, found = parse(f"{before}\n{said}\n{after}", family)
    assert content == before + after
    assert found == [(i, f"call{i}", name, args) for i, (name, args) in enumerate(calls)]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>now</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}]</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
        ("hermes", '<tool_call>[{"name": "f", "arguments": {}}, 5]</tool_call>'),
        ("hermes", "<tool_call>[]</tool_call>"),
        ("hermes", '{"name": "f", "arguments": {}}'),
        ("hermes", "<tool_call>" + "[" * (MAX_DEPTH + 1)),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}"),
        ("llama", '{"answer": 42}'),
        ("llama", 'As JSON: {"name": "f", "parameters": {}}'),
        ("llama", '<|python_tag|>search.call(query="x")'),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral", "[1, 2]"),
    ],
)
def test_what_is_no_call_stays_content(family: str, text: str) -> None:
    assert parse(text, family) == (text, [])


def test_a_call_behind_one_that_is_broken_is_found() -> None:
    broken, good = '<tool_call>{"name": </tool_call>', in_family("hermes", [("f", {"x": 1})])
    content, calls = parse(f"{broken} {good}", "hermes")
    assert (content, [call[2] for call in calls]) == (broken, ["f"])


def test_other_ways_to_write_a_call_are_understood() -> None:
    text = '<|python_tag|>{"type": "function", "name": "f", "parameters": {"x": 1}}'
    assert parse(text, "llama")[1] == [(0, "call0", "f", {"x": 1})]
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcDEF123"}]'
    assert parse(text, "mistral")[1] == [(0, "abcDEF123", "f", {})]
    text = '<tool_call>{"name": "f", "arguments": "{\\"x\\": \\"\\ud800 é\\"}"}</tool_call>'
    assert parse(text, "hermes")[1] == [(0, "call0", "f", {"x": "\ud800 é"})]
    text = '<tool_call>{"name": "f", "arguments": {"x": "two\nlines"}}</tool_call>'
    assert parse(text, "hermes")[1] == [(0, "call0", "f", {"x": "two\nlines"})]


def test_content_does_not_wait() -> None:
    parser = ToolCallParser(TEMPLATES["hermes"])
    pushed = [
        parser.push(piece)[0] for piece in ["Hel", "lo  ", "wor", "ld <to", "ast> ", "<tool_c"]
    ]
    assert pushed == ["Hel", "lo", "  wor", "ld", " <toast>", ""]
    content, calls = parser.push('all>{"name": "f", "arguments": {}}')
    assert (content, [call.name for call in calls]) == ("", ["f"])  # without waiting for its end
    assert parser.finish() == ("", [])


def test_a_template_without_calls_leaves_all_text_alone() -> None:
    text = in_family("hermes", [("f", {})])
    assert parse_tool_calls(text, "{{ messages }}") == (text, [])


def test_long_texts_of_halves_are_content_to_the_letter() -> None:
    for text in ("<tool_call>{" * 4000, '<tool_call>{"' * 4000, " " * 50_000, "<" * 50_000):
        pieces = [text[at : at + 8] for at in range(0, len(text), 8)]
        assert parse_in_pieces(pieces, "hermes") == (text, [])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        *zip(TEMPLATES.values(), (HERMES, SMOLLM, LLAMA, MISTRAL), strict=True),
        ('<|start_header_id|>{"name": function name, "parameters": dictionary}', LLAMA),
        ("<tool_call>\n<function=name>", None),
        ("[TOOL_CALLS]name[ARGS]", None),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
    ],
)
def test_the_template_tells_the_family(template: str, expected: ToolFormat | None) -> None:
    assert tool_format(template) == expected


def test_ids_are_short_and_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 9 and one.isalnum() for one in ids)
