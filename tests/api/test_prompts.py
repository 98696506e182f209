"""The forms that prompts, conversations and parameters may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.prompts import asks_of, parse_conversations, parse_params
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import RequestError

TEXT = ("hi", [104, 105])
IDS = (None, [1, 2])
TURN = {"role": "user", "content": "hi"}


def asks(prompts: Any) -> list[Ask]:
    return asks_of(prompts, None, None, lambda text: list(text.encode()))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hi", [TEXT]),
        ("", [("", [])]),
        (["hi", "hi"], [TEXT, TEXT]),
        (("hi",), [TEXT]),
        ({"prompt": "hi"}, [TEXT]),
        ({"prompt_token_ids": [1, 2]}, [IDS]),
        ({"prompt": "hi", "prompt_token_ids": [1, 2]}, [IDS]),
        ([{"prompt": "hi"}, "hi", {"prompt_token_ids": [1, 2]}, [1, 2]], [TEXT, TEXT, IDS, IDS]),
        ([1, 2], [IDS]),
        ([], []),
    ],
)
def test_prompts_that_are_understood(
    prompts: Any, expected: list[tuple[str | None, list[int]]]
) -> None:
    assert [(ask.text, ask.token_ids) for ask in asks(prompts)] == expected


def test_token_ids_may_be_an_array() -> None:
    ids: Any = np.array([1, 2])
    (ask,) = asks({"prompt_token_ids": ids})
    assert ask.token_ids is ids


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "prompts must be a prompt or a list of them, got NoneType"),
        (5, "prompts must be .* got int"),
        (b"hi", "prompts must be .* got bytes"),
        ({}, r"the prompt must be text, \{'prompt': text\} or .* got NoneType"),
        ({"prompt": 5}, "the prompt must be text, .* got int"),
        ({"prompt_token_ids": "12"}, "the prompt: prompt_token_ids must be a list .* got str"),
        (["hi", None], "prompt 1 must be text, .* got NoneType"),
        (["hi", []], "prompt 1 must be text, .* got list"),
        (["hi", {"prompt_token_ids": 5}], "prompt 1: prompt_token_ids must be .* got int"),
    ],
)
def test_prompts_that_are_refused(prompts: Any, message: str) -> None:
    if isinstance(prompts, bytes):
        message = "must be text"
    with pytest.raises(RequestError, match=message):
        asks(prompts)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([TURN], [[TURN]]),
        ([TURN, TURN], [[TURN, TURN]]),
        ((TURN,), [[TURN]]),
        ([[TURN], [TURN, TURN]], [[TURN], [TURN, TURN]]),
    ],
)
def test_conversations_that_are_understood(messages: Any, expected: Any) -> None:
    assert parse_conversations(messages) == expected


@pytest.mark.parametrize(
    "messages", [[], [[]], "hi", None, ["hi"], [TURN, "hi"], [{"content": "hi"}], [[TURN], TURN]]
)
def test_conversations_that_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match=r"a (conversation|message) must be"):
        parse_conversations(messages)


def test_parameters_for_all_or_for_each() -> None:
    one, other = SamplingParams(seed=1), SamplingParams(seed=2)
    assert parse_params(None, 2) == [SamplingParams()] * 2
    assert parse_params(one, 3) == [one] * 3
    assert parse_params([one, other], 2) == [one, other]
    assert parse_params([], 0) == []


@pytest.mark.parametrize("params", [[SamplingParams()], [None, None], {"seed": 1}, 5])
def test_parameters_that_do_not_match(params: Any) -> None:
    with pytest.raises(RequestError, match="one SamplingParams or a list of 2, one a prompt"):
        parse_params(params, 2)
