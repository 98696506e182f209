"""What SamplingParams takes, and how it says no."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import RequestError


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)
    assert (params.presence_penalty, params.frequency_penalty) == (0.0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.logprobs) == (16, 0, None)
    assert params.stop_texts == ()
    assert not params.greedy
    assert not params.penalised


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature must be a number of at least 0, got -0.1"),
        ("temperature", math.nan, "temperature must be .* got nan"),
        ("temperature", math.inf, "temperature must be .* got inf"),
        ("temperature", 10**400, r"temperature must be .* got 10+\.\.\."),
        ("top_p", 10**400, "top_p must be"),
        ("temperature", "hot", "temperature must be .* got 'hot'"),
        ("temperature", True, "temperature must be .* got True"),
        ("top_p", 0.0, "top_p must be a number above 0 and at most 1, got 0.0"),
        ("top_p", 1.01, "top_p must be .* got 1.01"),
        ("min_p", -0.01, "min_p must be a number from 0 to 1, got -0.01"),
        ("min_p", 1.5, "min_p must be .* got 1.5"),
        ("top_k", -2, "top_k must be 0 or -1 .* got -2"),
        ("top_k", 1.5, "top_k must be .* got 1.5"),
        ("repetition_penalty", 0.0, "repetition_penalty must be above 0, got 0.0"),
        ("presence_penalty", 2.1, "presence_penalty must be a number from -2 to 2, got 2.1"),
        ("frequency_penalty", -2.1, "frequency_penalty must be .* got -2.1"),
        ("seed", -1, "seed must be an integer from 0 to .* got -1"),
        ("seed", 2**64, "seed must be .* got 18446744073709551616"),
        ("n", 0, "n must be an integer from 1 to 128, got 0"),
        ("max_tokens", 0, "max_tokens must be an integer of at least 1, got 0"),
        ("max_tokens", "5", "max_tokens must be .* got '5'"),
        ("min_tokens", -1, "min_tokens must be an integer of at least 0, got -1"),
        ("min_tokens", 17, r"min_tokens \(17\) must not exceed max_tokens \(16\)"),
        ("logprobs", -1, "logprobs must be an integer of at least 0, got -1"),
        ("stop", "", "stop must be a text or texts, none of them empty, got ''"),
        ("stop", ["a", ""], "stop must be .* got"),
        ("stop", ["a", 3], "stop must be .* got"),
        ("stop", 3, "stop must be a list, got 3"),
        ("stop_token_ids", [-1], "stop_token_ids must be a list of token ids, got -1"),
        ("stop_token_ids", ["a"], "stop_token_ids must be .* got 'a'"),
        ("stop_token_ids", 5, "stop_token_ids must be a list, got 5"),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(**{field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("top_p", 1),
        ("top_k", -1),
        ("min_p", 1),
        ("repetition_penalty", 0.01),
        ("presence_penalty", -2),
        ("seed", 2**64 - 1),
        ("max_tokens", None),
        ("logprobs", 0),
    ],
)
def test_values_at_the_edge_are_taken(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("stop", "texts"), [(None, ()), ("ab", ("ab",)), (["a", "b"], ("a", "b")), (("a",), ("a",))]
)
def test_stop_is_one_text_or_several(stop: Any, texts: tuple[str, ...]) -> None:
    params = SamplingParams(stop=stop, stop_token_ids=[1, 2])
    assert params.stop_texts == texts
    assert params.stop_token_ids == (1, 2)
    assert hash(params) == hash(SamplingParams(stop=stop, stop_token_ids=[1, 2]))


def test_a_number_that_python_does_not_write() -> None:
    with pytest.raises(
        RequestError, match=r"repetition_penalty .* got a number of very many digits"
    ):
        SamplingParams(repetition_penalty=10**5000)
