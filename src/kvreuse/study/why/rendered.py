"""Rendered: a request as the model would get it. Only a tokenizer and a template are needed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.errors import RequestError
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.study.why.asked import Asked
from kvreuse.text.chat import ChatTemplate, chat_template
from kvreuse.text.offsets import token_at
from kvreuse.text.parts import PromptParts, prompt_parts
from kvreuse.text.tokenizer import Tokenizer

Ids = npt.NDArray[np.int32]
"""int32[n]: the tokens of a prompt."""
_NO_PARTS = PromptParts(())


class Texts:
    """What makes prompts of requests: the tokenizer and the chat template of a model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._knows_developer = template is not None and "developer" in template.source

    @classmethod
    def of_model(cls, model: str | os.PathLike[str]) -> Texts:
        """Those of a model's file; the weights stay where they are. ModelFileError."""
        with open_checkpoint(resolve(os.fspath(model))) as checkpoint:
            tokenizer = Tokenizer(checkpoint.vocabulary)
            return cls(tokenizer, chat_template(checkpoint.chat_templates, tokenizer))

    def rendered(self, asked: Asked, ids: Ids | None = None) -> Rendered:
        """The prompt of a request; ``ids`` are its tokens where they are known.

        RequestError, naming the request, where the template or the tokenizer refuses it.
        """
        try:
            if asked.messages is None:
                return self._plain(asked)
            text = self.text_of(asked)
            if ids is None:
                encoded = self.tokenizer.encode(text, add_special_tokens=False)
                ids = np.asarray(encoded, dtype=np.int32)
        except RequestError as error:
            raise RequestError(f"{asked.name}: {error}") from None
        return Rendered(self, asked, text, ids)

    def text_of(self, asked: Asked, **options: Any) -> str:
        """The text of a chat; ``options`` go before those of the request. RequestError."""
        if self.template is None:
            raise RequestError("the model has no chat template: compare texts, not chats")
        return self.template.render(
            self.messages_of(asked), tools=asked.tools, **{**asked.options, **options}
        )

    def messages_of(self, asked: Asked) -> list[Mapping[str, Any]]:
        """The messages as the server hands them on: ``developer`` is ``system`` to most models."""
        return [
            {**message, "role": "system"}
            if message["role"] == "developer" and not self._knows_developer
            else message
            for message in asked.messages or ()
        ]

    def _plain(self, asked: Asked) -> Rendered:
        ids = asked.prompt_ids
        if ids is None:
            ids = tuple(self.tokenizer.encode(asked.prompt or ""))
        text = asked.prompt
        if text is None:
            text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return Rendered(self, asked, text, np.asarray(ids, dtype=np.int32))


class Rendered:
    """A request's text, its tokens, and its parts where it is a chat."""

    def __init__(self, texts: Texts, asked: Asked, text: str, ids: Ids) -> None:
        self.asked = asked
        self.text = text
        self.ids = ids
        self._texts = texts

    @functools.cached_property
    def parts(self) -> PromptParts:
        """Found when they are first asked for; nothing but ``template`` for other prompts."""
        asked, template = self.asked, self._texts.template
        if asked.messages is None or template is None:
            return _NO_PARTS
        messages = self._texts.messages_of(asked)
        return prompt_parts(template, self.text, messages, tools=asked.tools, **asked.options)

    def answered(self) -> list[Ids]:
        """The prompt's tokens with those of each answer that is known, as the text encodes."""
        encode = self._texts.tokenizer.encode
        answers = [encode(one, add_special_tokens=False) for one in self.asked.answers if one]
        return [np.concatenate([self.ids, np.asarray(one, np.int32)]) for one in answers]

    def tokens_before(self, character: int) -> int:
        """Tokens that lie in front of a character of the text in full."""
        return token_at(self._texts.tokenizer, self.ids.tolist(), self.text, character)

    def without_generation_prompt(self) -> str:
        """A chat's text, ending with its last message. RequestError as for :class:`Texts`."""
        return self._texts.text_of(self.asked, add_generation_prompt=False)
