"""The official ``openai`` client, unmodified, against the server: its typed objects."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.llm import LLM

from .running import NAME, Running

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about the sea."}]
PROMPT = "The three primary colours are"


def chat(client: OpenAI, **options: object) -> ChatCompletion:
    """A greedy chat."""
    options = {"temperature": 0, "max_tokens": 12, "messages": MESSAGES, "model": NAME} | options
    answer = client.chat.completions.create(**options)  # type: ignore[call-overload]
    assert isinstance(answer, ChatCompletion)
    return answer


def complete(client: OpenAI, **options: object) -> Completion:
    """A greedy completion."""
    options = {"temperature": 0, "max_tokens": 8, "prompt": PROMPT, "model": NAME} | options
    answer = client.completions.create(**options)  # type: ignore[call-overload]
    assert isinstance(answer, Completion)
    return answer


def test_chat(client: OpenAI, server: Running) -> None:
    answer = chat(client)
    [choice] = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == NAME
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    again = chat(client)
    assert again.choices[0].message.content == choice.message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    server.settles()


def test_the_answer_is_that_of_the_library(client: OpenAI, model_path: object, llm: LLM) -> None:
    answer = complete(client)
    ids = llm.tokenizer.encode(PROMPT)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert complete(client, prompt=ids).choices[0].text == answer.choices[0].text
    with LLM(str(model_path), kv_cache_memory="64MiB", max_model_len=256) as own:
        [output] = own.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8))
    assert answer.choices[0].text == output.outputs[0].text


def test_chat_streams_the_same(client: OpenAI) -> None:
    whole = chat(client)
    stream = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    *parts, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == 12
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in parts)
    assert parts[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in parts] == [None] * 11 + ["length"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert text == whole.choices[0].message.content
    assert {chunk.id for chunk in chunks} == {last.id}


def test_completions_stream_the_same(client: OpenAI) -> None:
    prompts = [PROMPT, "Once upon a time"]
    whole = complete(client, prompt=prompts, n=2, temperature=1, seed=5)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    stream = client.completions.create(
        model=NAME, prompt=prompts, n=2, temperature=1, seed=5, max_tokens=8, stream=True
    )
    texts = ["", "", "", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert len(set(texts)) == 4


def test_seeds(client: OpenAI) -> None:
    one, same, other = (
        complete(client, temperature=1, seed=seed, max_tokens=16).choices[0].text
        for seed in (1, 1, -2)
    )
    assert one == same != other


def test_several_answers(client: OpenAI) -> None:
    answer = chat(client, n=3, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3


def test_chat_logprobs(client: OpenAI, server: Running) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    for token in logprobs.content:
        assert token.logprob <= 0
        assert [one.logprob for one in token.top_logprobs] == sorted(
            (one.logprob for one in token.top_logprobs), reverse=True
        )
        assert token.top_logprobs[0].token == token.token  # greedy
        assert len(token.top_logprobs) == 3
    text = b"".join(bytes(token.bytes or []) for token in logprobs.content).decode()
    assert text == answer.choices[0].message.content
    stream = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        logprobs=True,
        top_logprobs=3,
        stream=True,
    )
    streamed = [
        entry
        for chunk in stream
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == logprobs.content


def test_completion_logprobs(client: OpenAI) -> None:
    logprobs = complete(client, logprobs=2).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == 8
    ends = [
        at + len(token) for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)
    ]
    assert logprobs.text_offset == [0, *ends[:-1]]
    for token, value, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top[token] == value == max(top.values())


def test_stop(client: OpenAI) -> None:
    text = complete(client, max_tokens=16).choices[0].text
    word = text.split()[3]
    answer = complete(client, max_tokens=16, stop=[word])
    assert answer.choices[0].text == text[: text.index(word)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": word}


def test_echo(client: OpenAI, llm: LLM) -> None:
    answer = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == PROMPT + answer
    ids = llm.tokenizer.encode(PROMPT)
    assert complete(client, echo=True, prompt=ids).choices[0].text == PROMPT + answer
    chunks = client.completions.create(
        model=NAME, prompt=PROMPT, echo=True, temperature=0, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + answer


def test_vllm_fields(client: OpenAI) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "ignore_eos": True,
        "min_tokens": 3,
        "cache_salt": "mine",
        "prompt_cache_key": "session 1",
    }
    answer = complete(client, extra_body=extra, temperature=1, seed=1, top_p=0.9, user="me")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_models(client: OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == NAME
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == 1024
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_developers_count_as_system(client: OpenAI) -> None:
    told = [
        chat(client, messages=[{"role": role, "content": "Be brief."}, *MESSAGES])
        for role in ("system", "developer")
    ]
    assert told[0].choices[0].message.content == told[1].choices[0].message.content


def test_parts_and_earlier_tool_calls(client: OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "colours", "arguments": '{"count": 2}'},
    }
    answer = chat(
        client,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Name two colours."}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "red, blue"},
        ],
    )
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "error", "code", "words"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found", "gpt-4"),
        (
            {"messages": [{"role": "user", "content": "word " * 2000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "1024 tokens",
        ),
        ({"logit_bias": {"5": 1}}, openai.BadRequestError, "unsupported_parameter", "logit_bias"),
        ({"extra_body": {"frob": 1}}, openai.BadRequestError, "unsupported_parameter", "frob"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"n": 1000}, openai.BadRequestError, "invalid_value", "n: "),
        ({"top_logprobs": 3}, openai.BadRequestError, "invalid_value", "logprobs"),
        ({"messages": []}, openai.BadRequestError, "invalid_value", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            openai.BadRequestError,
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            {"extra_body": {"chat_template_kwargs": {"messages": 1}}},
            openai.BadRequestError,
            "invalid_value",
            "chat_template_kwargs",
        ),
    ],
)
def test_errors(
    client: OpenAI,
    options: dict[str, object],
    error: type[openai.APIStatusError],
    code: str,
    words: str,
) -> None:
    with pytest.raises(error) as raised:
        chat(client, **options)
    assert raised.value.code == code
    assert words in raised.value.message
    with pytest.raises(error):
        chat(client, **options, stream=True)
