"""From a StructuredOutputs to a grammar of llguidance, and from its errors to one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# One line with Python's separators: small models repeat optional whitespace without end.
JSON_STYLE: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
MAX_MESSAGE = 300
MAX_BYTES = 1 << 17
"""Characters of a form: the time to compile one grows faster than its length."""
MAX_CHOICES = 10_000
MAX_LINKS = 2000
"""Lines of a grammar or references of a schema: llguidance follows them recursively."""


def check_size(outputs: StructuredOutputs) -> None:
    """RequestError for a form that would take llguidance too much time or too deep a stack."""
    texts = outputs.choice or [str(getattr(outputs, outputs.form))]
    size = sum(len(text) for text in texts)
    if size > MAX_BYTES:
        raise refused(outputs, f"it is {size} characters long, at most {MAX_BYTES} are possible")
    if len(texts) > MAX_CHOICES:
        raise refused(outputs, f"it has {len(texts)} texts, at most {MAX_CHOICES} are possible")
    for link, name in (("\n", "lines"), ("$ref", "references"), ("\\u", "escapes")):
        links = texts[0].count(link) if outputs.form in ("json", "grammar") else 0
        if links > MAX_LINKS:  # a grammar may hold schemas, and an escape may hide a reference
            raise refused(outputs, f"it has {links} {name}, at most {MAX_LINKS} are possible")


def grammar_of(outputs: StructuredOutputs) -> str:
    """The grammar, not yet compiled. RequestError for text that is not a JSON schema."""
    from llguidance import LLMatcher  # noqa: PLC0415

    if outputs.regex is not None:
        return LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.grammar is not None:
        return LLMatcher.grammar_from_lark(outputs.grammar)
    if outputs.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + alternatives(outputs.choice))
    schema = '{"type": "object"}' if outputs.json is None else str(outputs.json)
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE)
    except ValueError as error:
        raise refused(outputs, str(error)) from None


def alternatives(texts: Sequence[str]) -> str:
    """Texts as alternative literals in Lark's notation, which has JSON's escapes."""
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def refused(outputs: StructuredOutputs, message: str) -> RequestError:
    """The error of a form that cannot be followed, in one line."""
    return RequestError(f"structured_outputs.{outputs.form} cannot be followed: {in_line(message)}")


def in_line(message: str) -> str:
    """One line of a message: its last ``error:`` line, or its first line if there is none."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = errors[-1] if errors else lines[0]
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."
