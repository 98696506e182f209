"""Chats: from conversations to asks, and what was answered back into the next turn."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.prompts import Conversation
from kvreuse.errors import RequestError
from kvreuse.text.chat import ChatTemplate
from kvreuse.text.parts import PromptParts, prompt_parts
from kvreuse.text.tokenizer import Tokenizer
from kvreuse.text.turns import TurnMemory


class Chats:
    """Renders conversations with a model's template. Threads may share it."""

    def __init__(self, template: ChatTemplate | None, tokenizer: Tokenizer) -> None:
        """``template`` None: the model has none, and takes no chats."""
        self._template = template
        self.turns = TurnMemory(tokenizer)

    def ask(
        self,
        messages: Conversation,
        options: Mapping[str, Any],
        *,
        cache_salt: str | None = None,
        **fields: Any,
    ) -> Ask:
        """The ask of a conversation; ``options`` go to the template, ``fields`` are Ask's others.

        The next turn of a conversation has the tokens that its turns were served with.
        RequestError where there is no template, or it refuses the messages.
        """
        template = self._template
        if template is None:
            raise RequestError("the model has no chat template: give it a prompt, not a chat")
        text = template.render(messages, **options)
        ids = np.array(self.turns.encode(text, cache_salt), dtype=np.int32)

        @functools.cache
        def parts() -> PromptParts:
            return prompt_parts(template, text, messages, **options)

        return Ask(
            ids,
            text=text,
            cache_salt=cache_salt,
            part_of=lambda character: str(parts().at(character)),
            **fields,
        )

    def remember(self, ask: Ask, output: RequestOutput) -> None:
        """Keep the tokens of a chat's answers for its next turn; other prompts are left alone."""
        if ask.part_of is None or ask.text is None:
            return
        for answer in output.outputs:
            self.turns.remember(ask.text, output.prompt_token_ids, answer.token_ids, ask.cache_salt)
