"""Prompts out of bodies: rendered, tokenised, and refused early where they can never fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvreuse.api.prompts import ParsedPrompt
from kvreuse.engine.bounds import checked_ids, room_for_answer
from kvreuse.errors import ContextLengthError
from kvreuse.llm import LLM
from kvreuse.server.schema.chat import Templated
from kvreuse.server.schema.completions import AnyPrompt
from kvreuse.text.tokenizer import check_unicode

_LONGEST_TOKEN = 512
"""Bytes of text that no token stands for more of, with room for normalisation."""


class Inputs:
    """Makes prompts of what clients send. Its methods may be called from several threads."""

    def __init__(self, llm: LLM) -> None:
        """The template's mention of developers decides whether they are a system's."""
        self._llm = llm
        source = llm.chat_template.source if llm.chat_template is not None else ""
        self._knows_developer = "developer" in source

    def chat(self, asked: Templated, salt: str | None) -> ParsedPrompt:
        """The prompt for a conversation."""
        messages = [self._message(one) for one in asked.conversation()]
        self._check_length(sum(len(str(one.get("content") or "")) for one in messages))
        return self._llm.chat_prompt(messages, cache_salt=salt, **asked.template_options())

    def plain(self, prompt: str | Sequence[int], salt: str | None) -> ParsedPrompt:
        """A text, or token ids as they are."""
        if not isinstance(prompt, str):
            return ParsedPrompt(None, prompt, salt)
        check_unicode(prompt)
        self._check_length(len(prompt))
        return ParsedPrompt(prompt, self._llm.tokenizer.encode(prompt), salt)

    def check(self, prompt: ParsedPrompt, max_tokens: int | None) -> ParsedPrompt:
        """``prompt``, which can be served. RequestError, with the numbers, where it never could."""
        ids = checked_ids(prompt.token_ids or (), self._llm.shape.vocab_size)
        room_for_answer(len(ids), max_tokens, self._llm.engine.max_model_len, self._llm.pool)
        return prompt

    def any(self, asked: AnyPrompt, salt: str | None) -> ParsedPrompt:
        """Either."""
        if asked.messages is not None:
            return self.chat(asked.templated(), salt)
        assert asked.prompt is not None
        return self.plain(asked.prompt, salt)

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "developer" and not self._knows_developer:
            return {**message, "role": "system"}
        return message

    def _check_length(self, characters: int) -> None:
        """ContextLengthError for a text that cannot fit, before seconds go into its tokens."""
        limit = self._llm.engine.max_model_len
        least = characters // _LONGEST_TOKEN
        if least >= limit:
            raise ContextLengthError(
                f"the prompt has {characters} characters, so more than {least} tokens", limit
            )
