"""``POST /v1/completions``, as OpenAI defines it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.server import reuse
from kvreuse.server.dialects.dialect import Dialect, Reply, Served
from kvreuse.server.dialects.logprobs import Step, completion_logprobs
from kvreuse.server.forms import compiles_form, form_of
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.completions import CompletionRequest
from kvreuse.server.schema.replies import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
    Usage,
)


class Completions(Dialect[CompletionRequest]):
    """Continuations of one prompt or many."""

    name = "completions"
    path = "/v1/completions"
    summary = "Continue one prompt or many."
    body = CompletionRequest
    whole = CompletionReply
    event = CompletionReply

    def streams(self, asked: CompletionRequest) -> bool:
        """As ``stream`` says."""
        return bool(asked.stream)

    def compiles(self, asked: CompletionRequest) -> bool:
        """Whether the answers have a form."""
        return compiles_form(asked)

    def asks(self, asked: CompletionRequest) -> list[Ask]:
        """One for each prompt."""
        params = asked.sampling_params(
            max_tokens=asked.max_tokens or 16,
            logprobs=asked.logprobs,
            structured_outputs=form_of(asked, self.served.llm),
        )
        plain, salt, retention = self.served.inputs.plain, asked.cache_salt, asked.retention
        return [plain(one, salt, params=params, retention=retention) for one in asked.prompts()]

    def reply(self, asked: CompletionRequest, asks: Sequence[Ask]) -> CompletionAnswer:
        """The replies."""
        return CompletionAnswer(self.served, asked, asks)


class CompletionAnswer(Reply):
    """Texts, whole or in pieces. A choice's index counts the answers to all prompts."""

    def __init__(self, served: Served, asked: CompletionRequest, asks: Sequence[Ask]) -> None:
        self._served = served
        self._asked = asked
        self._echoes = [self._echo(ask) if asked.echo else "" for ask in asks]
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._lengths: dict[int, int] = {}  # characters of the tokens so far, by choice
        path, key = Completions.path, asked.prompt_cache_key
        self.origin = Origin(path, self._id, key, asked.user)

    def push(self, prompt: int, delta: Delta) -> list[CompletionReply]:
        """One event a token; the first one of a choice begins with the echo of the prompt."""
        index = prompt * self._asked.answers + delta.index
        length = self._lengths.get(index)
        choice: CompletionChoice = {
            "index": index,
            "text": delta.text if length is not None else self._echoes[prompt] + delta.text,
            "logprobs": self._logprobs([delta.logprobs], length or 0) if delta.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": None,
        }
        self._lengths[index] = length or 0
        if delta.logprobs:
            self._lengths[index] += len(next(iter(delta.logprobs.values())).decoded_token)
        return [self._event([choice])]

    def end(self, outputs: Sequence[RequestOutput]) -> list[CompletionReply]:
        """The usage, where it was asked for."""
        if not self._asked.include_usage:
            return []
        return [self._event([], reuse.usage_of(outputs))]

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionReply:
        """All texts."""
        choices: list[CompletionChoice] = [
            {
                "index": at * self._asked.answers + answer.index,
                "text": self._echoes[at] + answer.text,
                "logprobs": self._logprobs(answer.logprobs, 0),
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            for at, output in enumerate(outputs)
            for answer in output.outputs
        ]
        return {**self._reply(choices), "usage": reuse.usage_of(outputs)}

    def _event(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionReply:
        event = self._reply(choices)
        if self._asked.include_usage:
            event["usage"] = usage
        return event

    def _reply(self, choices: list[CompletionChoice]) -> CompletionReply:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
            "system_fingerprint": self._served.fingerprint,
        }

    def _echo(self, ask: Ask) -> str:
        """The prompt's text."""
        if ask.text is not None:
            return ask.text
        tokenizer = self._served.llm.tokenizer
        return tokenizer.decode([int(token) for token in ask.token_ids], skip_special_tokens=False)

    def _logprobs(self, steps: Sequence[Step] | None, offset: int) -> CompletionLogprobs | None:
        if steps is None:
            return None
        return completion_logprobs(steps, self._asked.logprobs or 0, offset)
