"""The forms in which prompts, conversations and their sampling parameters may be given."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from kvreuse.api.ask import Ask
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import RequestError


class _Salted(TypedDict, total=False):
    """Only prompts of the same salt share pages; prompts without one share with each other."""

    cache_salt: str


class TextPrompt(_Salted):
    """A prompt as text."""

    prompt: str


class TokensPrompt(_Salted):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


Prompt: TypeAlias = str | TextPrompt | TokensPrompt | Sequence[int]
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]


def asks_of(
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    retention: Retention | None,
    encode: Callable[[str], Sequence[int]],
) -> list[Ask]:
    """One prompt or a list of them, with their parameters; ``encode`` makes tokens of a text.

    RequestError, saying which, for anything that is neither.
    """
    if isinstance(prompts, (str, Mapping)) or _is_token_ids(prompts):
        every: list[Any] = [prompts]
        names = ["the prompt"]
    elif isinstance(prompts, Sequence):
        every = list(prompts)
        names = [f"prompt {index}" for index in range(len(every))]
    else:
        raise RequestError(f"prompts must be a prompt or a list of them, got {_kind(prompts)}")
    return [
        ask_of(prompt, one, retention, encode, name)
        for prompt, one, name in zip(every, parse_params(params, len(every)), names, strict=True)
    ]


def ask_of(
    prompt: Any,
    params: SamplingParams,
    retention: Retention | None,
    encode: Callable[[str], Sequence[int]],
    what: str = "the prompt",
) -> Ask:
    """Text, ``{"prompt": text}``, ``{"prompt_token_ids": ids}`` or a list of token ids."""
    salt = None
    if isinstance(prompt, Mapping):
        salt = prompt.get("cache_salt")
        if "prompt_token_ids" in prompt:
            ids = _token_ids(prompt["prompt_token_ids"], what)
            return Ask(ids, params, None, salt, retention or DEFAULT_RETENTION)
        prompt = prompt.get("prompt")
    if isinstance(prompt, str):
        return Ask(encode(prompt), params, prompt, salt, retention or DEFAULT_RETENTION)
    if _is_token_ids(prompt):
        return Ask(prompt, params, None, None, retention or DEFAULT_RETENTION)
    raise RequestError(
        f"{what} must be text, {{'prompt': text}} or {{'prompt_token_ids': [...]}}, "
        f"got {_kind(prompt)}"
    )


def parse_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or a list of them. RequestError for an empty one or a malformed message."""
    conversations: list[Any] = list(messages) if _is_list(messages) else [messages]
    if not conversations or isinstance(conversations[0], Mapping):
        conversations = [conversations]
    for conversation in conversations:
        if not _is_list(conversation) or not conversation:
            raise RequestError("a conversation must be a list of at least one message")
        for message in conversation:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise RequestError(
                    f"a message must be {{'role': ..., 'content': ...}}, got {_kind(message)}"
                )
    return conversations


def parse_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """The parameters of ``count`` prompts: None is the defaults, one serves all, or one each."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    every = list(params) if isinstance(params, Sequence) else []
    if len(every) != count or not all(isinstance(one, SamplingParams) for one in every):
        raise RequestError(
            f"sampling_params must be one SamplingParams or a list of {count}, one a prompt"
        )
    return every


def _is_list(value: Any) -> bool:
    """Whether ``value`` is a sequence, and not text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_token_ids(value: Any) -> bool:
    """Whether ``value`` is a list of token ids: it starts with an integer."""
    return _is_list(value) and len(value) > 0 and isinstance(value[0], numbers.Integral)


def _token_ids(ids: Any, what: str) -> Sequence[int]:
    """``ids`` if they are a list or an array; the engine checks what they are."""
    if not _is_list(ids) and not hasattr(ids, "__array__"):
        raise RequestError(f"{what}: prompt_token_ids must be a list of integers, got {_kind(ids)}")
    checked: Sequence[int] = ids
    return checked


def _kind(value: Any) -> str:
    """The type of ``value``, as an error names it."""
    return type(value).__name__
