"""``POST /v1/chat/completions``, as OpenAI defines it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import CompletionOutput, Delta, RequestOutput
from kvreuse.server import reuse
from kvreuse.server.dialects.dialect import Dialect, Reply, Served
from kvreuse.server.dialects.logprobs import Step, chat_logprobs
from kvreuse.server.forms import chat_form, compiles_chat_form, skips_special_tokens
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.chat import ChatRequest
from kvreuse.server.schema.replies import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatReply,
    MessageDelta,
    Usage,
)
from kvreuse.server.tools.calls import Calls, CallStream, calls_of


class ChatCompletions(Dialect[ChatRequest]):
    """Answers to a conversation."""

    name = "chat_completions"
    path = "/v1/chat/completions"
    summary = "Answer a conversation."
    body = ChatRequest
    whole = ChatReply
    event = ChatChunk

    def streams(self, asked: ChatRequest) -> bool:
        """As ``stream`` says."""
        return bool(asked.stream)

    def compiles(self, asked: ChatRequest) -> bool:
        """Whether the answer has a form, or must call a tool."""
        return compiles_chat_form(asked)

    def asks(self, asked: ChatRequest) -> list[Ask]:
        """One, rendered by the chat template."""
        llm, inputs = self.served.llm, self.served.inputs
        params = asked.sampling_params(
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            logprobs=asked.num_logprobs,
            structured_outputs=chat_form(asked, llm),
            skip_special_tokens=skips_special_tokens(asked, llm),
        )
        return [inputs.chat(asked, asked.cache_salt, params=params, retention=asked.retention)]

    def reply(self, asked: ChatRequest, asks: Sequence[Ask]) -> ChatAnswer:
        """The replies."""
        return ChatAnswer(self.served, asked)


class ChatAnswer(Reply):
    """Messages, whole or in chunks."""

    def __init__(self, served: Served, asked: ChatRequest) -> None:
        self._served = served
        self._asked = asked
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._calls = Calls.of(asked, served.llm.chat_template)
        self._streams: dict[int, CallStream] = {}  # by answer
        path, key = ChatCompletions.path, asked.prompt_cache_key
        self.origin = Origin(path, self._id, key, asked.user)

    def push(self, prompt: int, delta: Delta) -> list[ChatChunk]:
        """One chunk a token."""
        message: MessageDelta = {}
        calls = self._streams.get(delta.index)
        if calls is None:
            calls = self._streams[delta.index] = CallStream(self._calls)
            message = {"role": "assistant", "content": ""}
        ended = delta.finish_reason is not None
        text, called = calls.push(delta.text, last=ended)
        if text:
            message["content"] = text
        if called:
            message["tool_calls"] = called
        choice: ChatChunkChoice = {
            "index": delta.index,
            "delta": message,
            "logprobs": self._logprobs([delta.logprobs]) if delta.logprobs else None,
            "finish_reason": "tool_calls" if ended and calls.called else delta.finish_reason,
        }
        return [self._chunk([choice])]

    def end(self, outputs: Sequence[RequestOutput]) -> list[ChatChunk]:
        """The usage, where it was asked for."""
        if not self._asked.include_usage:
            return []
        return [self._chunk([], reuse.usage_of(outputs))]

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatReply:
        """All messages."""
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._served.name,
            "choices": [self._choice(answer) for one in outputs for answer in one.outputs],
            "usage": reuse.usage_of(outputs),
            "system_fingerprint": self._served.fingerprint,
        }

    def _choice(self, answer: CompletionOutput) -> ChatChoice:
        content, calls = calls_of(self._calls, answer.text)
        message: AnswerMessage = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": "tool_calls" if calls else answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        chunk: ChatChunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
            "system_fingerprint": self._served.fingerprint,
        }
        if self._asked.include_usage:
            chunk["usage"] = usage
        return chunk

    def _logprobs(self, steps: Sequence[Step] | None) -> ChatLogprobs | None:
        if steps is None:
            return None
        token_bytes = self._served.llm.tokenizer.token_bytes
        return chat_logprobs(steps, self._asked.top_logprobs or 0, token_bytes)
