"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.api.outputs import CompletionOutput, Delta, RequestOutput
from kvreuse.server import body, reuse, stream
from kvreuse.server.called import Calls, CallStream, calls_of
from kvreuse.server.disconnect import while_connected
from kvreuse.server.forms import chat_form, has_form, skips_special_tokens
from kvreuse.server.logprobs import Step, chat_logprobs
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
from kvreuse.server.service import Job, Service


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    raw = await body.read(request, service.config.max_body_bytes)
    asked = body.parse(ChatRequest, raw)
    service.check_model(asked.model)
    answering = await service.prepare(
        len(raw), lambda: Answering(service, asked), form=has_form(asked)
    )
    if asked.stream:
        return await stream.stream_response(request, answering.events(), answering.headers)
    with service.seats(asked.answers):
        output = await while_connected(request, service.answer(answering.job))
    answering.headers[reuse.HEADER] = reuse.header([reuse.reuse_of(output)])
    return JSONResponse(answering.reply(output), headers=answering.headers)


class Answering:
    """One chat request on its way: its job, and the replies that its answers become."""

    def __init__(self, service: Service, asked: ChatRequest) -> None:
        """Render the conversation; RequestError or APIError where it cannot be served."""
        self.headers: dict[str, str] = {}
        self._service = service
        self._asked = asked
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._calls = Calls.of(asked, service.llm.chat_template)
        self._streams: dict[int, CallStream] = {}
        params = asked.sampling_params(
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            logprobs=asked.num_logprobs,
            structured_outputs=chat_form(asked, service.llm),
            skip_special_tokens=skips_special_tokens(asked, service.llm),
        )
        ask = service.inputs.chat(asked, asked.cache_salt, params=params, retention=asked.retention)
        origin = Origin(
            "/v1/chat/completions",
            service.names[0],
            self._id,
            asked.prompt_cache_key,
            asked.user,
        )
        self.job = Job(service.inputs.check(ask), origin)

    def reply(self, output: RequestOutput) -> ChatReply:
        """The whole reply."""
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._service.names[0],
            "choices": [self._choice(answer) for answer in output.outputs],
            "usage": reuse.usage_of([output]),
            "system_fingerprint": self._service.fingerprint,
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream. Sets ``headers`` with its first event."""
        with self._service.seats(self._asked.answers):
            async with aclosing(self._service.stream(self.job)) as deltas:
                async for delta in deltas:
                    if delta.num_cached_tokens is not None:
                        self._tell_reuse(delta.num_cached_tokens, delta)
                    yield stream.event(self._chunk(delta))
                    if delta.output is not None and self._asked.include_usage:
                        yield stream.event(self._chunk_of([], reuse.usage_of([delta.output])))
        yield stream.DONE

    def _tell_reuse(self, cached: int, delta: Delta) -> None:
        prompt_tokens = len(self.job.ask.token_ids)
        told = reuse.reuse(prompt_tokens, cached, delta.miss)
        self.headers[reuse.HEADER] = reuse.header([told])

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

    def _chunk(self, delta: Delta) -> ChatChunk:
        """What one token adds."""
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
        reason: str | None = delta.finish_reason
        choice: ChatChunkChoice = {
            "index": delta.index,
            "delta": message,
            "logprobs": self._logprobs([delta.logprobs]) if delta.logprobs else None,
            "finish_reason": "tool_calls" if ended and calls.called else reason,
        }
        return self._chunk_of([choice])

    def _chunk_of(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        chunk: ChatChunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._service.names[0],
            "choices": choices,
            "system_fingerprint": self._service.fingerprint,
        }
        if self._asked.include_usage:
            chunk["usage"] = usage
        return chunk

    def _logprobs(self, steps: Sequence[Step] | None) -> ChatLogprobs | None:
        if steps is None:
            return None
        tokenizer = self._service.llm.tokenizer
        return chat_logprobs(steps, self._asked.top_logprobs or 0, tokenizer.token_bytes)
