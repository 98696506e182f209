"""Replies: OpenAI's objects; ``usage`` also says what was reused."""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict


class ErrorDetail(TypedDict):
    """An error; ``param`` is the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    """Every reply that is not a success."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    """``cached_tokens`` of the prompt were not computed."""

    cached_tokens: int


class Reuse(TypedDict):
    """What was reused of a prompt: of ``prompt_tokens``, ``cached_tokens`` were not computed.

    ``reason`` says why no more, and is null if it could not be more; ``index`` is the first token
    that was computed, ``part`` the part of the chat that it lies in.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    reason: str | None
    index: int | None
    part: str | None


class ReuseUsage(Reuse):
    """Of all prompts together, with the first one's reason; ``prompts`` where there are several."""

    prompts: NotRequired[list[Reuse]]


class Usage(TypedDict):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    kvreuse: ReuseUsage


class TopLogprob(TypedDict):
    """A token that might have been chosen."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that was chosen, and the most probable ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of an answer's tokens."""

    content: list[TokenLogprob] | None
    refusal: NotRequired[None]


class CalledFunction(TypedDict):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


class CalledTool(TypedDict):
    """A tool call; ``index`` in streams."""

    index: NotRequired[int]
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(TypedDict):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[CalledTool]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None


class ChatReply(TypedDict):
    """``chat.completion``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


class MessageDelta(TypedDict, total=False):
    """What a chunk adds to a message."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[CalledTool]


class ChatChunkChoice(TypedDict):
    """What a chunk adds to an answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(TypedDict):
    """``chat.completion.chunk``: one event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of an answer's tokens, in the form of completions."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One answer, or in a stream what an event adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class CompletionReply(TypedDict):
    """``text_completion``, whole or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]


class ModelCard(TypedDict):
    """A name of the model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(TypedDict):
    """All names."""

    object: Literal["list"]
    data: list[ModelCard]


class TokensReply(TypedDict):
    """Token ids, and how many may be served."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class TextReply(TypedDict):
    """Text, under vLLM's name and llama.cpp's."""

    prompt: str
    content: str


class StateReply(TypedDict):
    """The state of the server, and its load."""

    status: str
    running: int
    waiting: int
    stalled_seconds: float


class VersionReply(TypedDict):
    """The version."""

    version: str
