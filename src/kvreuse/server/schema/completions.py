"""The bodies of completions, and of other routes that take a plain prompt."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from kvreuse.server.schema.chat import Message, Templated, Tool
from kvreuse.server.schema.fields import ModelBody, Retain, Salt, Sampling, TokenId, Unsupported

Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompt = str | Ids
Prompts = (
    Prompt | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
)


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = Field(None, ge=1, le=128, description="Must be n.")
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        if self.best_of not in {None, self.answers}:
            raise ValueError("best_of is not supported unless it equals n")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported: ask for one of them")
        return self

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class AnyPrompt(ModelBody):
    """A prompt as text or token ids, or a conversation for the chat template; one of them."""

    prompt: Prompt | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] | None = Field(None, max_length=1024)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def given(self) -> list[Any]:
        """The forms of the prompt that were given; there must be one."""
        return [one for one in (self.prompt, self.messages) if one is not None]

    @model_validator(mode="after")
    def _one(self) -> AnyPrompt:
        if len(self.given()) != 1:
            raise ValueError("give one of prompt and messages")
        return self

    def templated(self) -> Templated:
        """The conversation, if it is one."""
        assert self.messages is not None
        return Templated(
            messages=self.messages,
            tools=self.tools,
            add_generation_prompt=self.add_generation_prompt,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class CachePrompt(AnyPrompt):
    """``POST /v1/cache/lookup``."""

    cache_salt: Salt | None = None
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1)


class PrefillRequest(AnyPrompt, Retain):
    """``POST /v1/cache/prefill``."""

    cache_salt: Salt | None = None


class TokenizeRequest(AnyPrompt):
    """``POST /tokenize``: ``prompt`` and ``messages`` as in vLLM, ``content`` as in llama.cpp."""

    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None

    def given(self) -> list[Any]:
        """The forms of the prompt that were given; there must be one."""
        return [one for one in (self.prompt, self.messages, self.content) if one is not None]

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if len(self.given()) != 1:
            raise ValueError("give one of prompt, messages and content")
        return self


class DetokenizeRequest(ModelBody):
    """``POST /detokenize``."""

    tokens: list[TokenId]
    skip_special_tokens: bool | None = None


class TemplateRequest(Templated, ModelBody):
    """``POST /apply-template``."""
