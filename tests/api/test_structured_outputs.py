"""What StructuredOutputs takes, and how it says no."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kvreuse import SamplingParams, StructuredOutputs
from kvreuse.errors import RequestError

DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of json, json_object, regex, choice, grammar, and only one; got none"),
        ({"json_object": False}, "got none"),
        ({"regex": "a", "choice": ["a"]}, "got regex and choice"),
        ({"json": {}, "json_object": True}, "got json and json_object"),
        ({"json_object": 1}, r"structured_outputs.json_object must be true or false, got 1"),
        ({"json": "{"}, "structured_outputs.json is no JSON: Expecting property name"),
        ({"json": "[1]"}, r"structured_outputs.json must be a JSON schema: an object, got '\[1\]'"),
        ({"json": 5}, "structured_outputs.json must be a JSON schema"),
        ({"json": {"a": {1}}}, "structured_outputs.json is no JSON: .*set is not"),
        ({"json": {"a": math.nan}}, "structured_outputs.json is no JSON: Out of range"),
        ({"json": DEEP}, "structured_outputs.json is no JSON: maximum recursion"),
        ({"json": "[" * 100_000}, "structured_outputs.json is no JSON: maximum recursion"),
        ({"regex": ""}, "structured_outputs.regex must be a text, and not empty, got ''"),
        ({"regex": 5}, "structured_outputs.regex must be a text"),
        ({"grammar": b"start:"}, "structured_outputs.grammar must be a text"),
        ({"choice": []}, "structured_outputs.choice must be a list of texts, none of them empty"),
        ({"choice": ["a", ""]}, "structured_outputs.choice must be .* got"),
        ({"choice": "abc"}, "structured_outputs.choice must be .* got 'abc'"),
        ({"choice": ["x" * 1000, 5]}, r"structured_outputs.choice must be .* got \['xxx.*\.\.\.$"),
    ],
)
def test_what_cannot_be_a_form_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        StructuredOutputs(**fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_params_take_nothing_else() -> None:
    wrong: Any = {"regex": "a"}
    with pytest.raises(RequestError, match="structured_outputs must be StructuredOutputs, got"):
        SamplingParams(structured_outputs=wrong)


def test_it_can_be_told_apart_and_does_not_change() -> None:
    schema = {"type": "object", "properties": {"ä": {"type": "string"}}}
    one = StructuredOutputs(json=schema)
    assert one == StructuredOutputs(json=json.dumps(schema))
    assert hash(one) == hash(StructuredOutputs(json=schema))
    schema["type"] = "array"
    assert json.loads(str(one.json))["type"] == "object"
    choice = StructuredOutputs(choice=["a", "b"])
    assert (choice.form, choice.choice) == ("choice", ("a", "b"))
    params = SamplingParams(structured_outputs=choice)
    assert hash(params) == hash(SamplingParams(structured_outputs=choice))
