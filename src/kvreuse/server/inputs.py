"""Prompts from bodies: rendered, tokenised, and refused early where they can never fit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kvreuse.api.ask import Ask
from kvreuse.engine.bounds import checked_ids, room_for_answer
from kvreuse.errors import ContextLengthError
from kvreuse.llm import LLM
from kvreuse.server.schema.chat import Templated
from kvreuse.server.schema.completions import AnyPrompt
from kvreuse.text.tokenizer import check_unicode

_LONGEST_TOKEN = 512
"""No token stands for more bytes of text than this, normalisation included."""


class Inputs:
    """Makes asks of texts, token ids and conversations. Threads may share it."""

    def __init__(self, llm: LLM) -> None:
        """Developers count as system where the template does not mention them."""
        self._llm = llm
        source = llm.chat_template.source if llm.chat_template is not None else ""
        self._knows_developer = "developer" in source

    def chat(self, asked: Templated, salt: str | None, **fields: Any) -> Ask:
        """The ask of a conversation; ``fields`` are Ask's others."""
        messages = [self._message(one) for one in asked.conversation()]
        self._check_length(sum(len(str(one.get("content") or "")) for one in messages))
        return self._llm.chats.ask(
            messages, asked.template_options(), cache_salt=salt, request_id=new_id(), **fields
        )

    def plain(self, prompt: str | Sequence[int], salt: str | None, **fields: Any) -> Ask:
        """The ask of a text, or of token ids as they are."""
        text = None
        if isinstance(prompt, str):
            check_unicode(prompt)
            self._check_length(len(prompt))
            text, prompt = prompt, self._llm.tokenizer.encode(prompt)
        ids = checked_ids(prompt, self._llm.shape.vocab_size)
        return Ask(ids, text=text, cache_salt=salt, request_id=new_id(), **fields)

    def check(self, ask: Ask) -> Ask:
        """``ask``, unchanged. RequestError, with the numbers, if it can never fit."""
        limit = self._llm.engine.max_model_len
        room_for_answer(len(ask.token_ids), ask.params.max_tokens, limit, self._llm.pool)
        return ask

    def any(self, asked: AnyPrompt, salt: str | None, **fields: Any) -> Ask:
        """The ask of whichever of the two ``asked`` has."""
        if asked.messages is not None:
            return self.chat(asked.templated(), salt, **fields)
        assert asked.prompt is not None
        return self.plain(asked.prompt, salt, **fields)

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


def new_id() -> str:
    """A new id for a request. Sampling without a seed depends on it, so answers differ."""
    return uuid.uuid4().hex
