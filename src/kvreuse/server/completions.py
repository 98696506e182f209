"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.server import body, reuse, stream
from kvreuse.server.disconnect import while_connected
from kvreuse.server.forms import form_of, has_form
from kvreuse.server.logprobs import Step, completion_logprobs
from kvreuse.server.merge import merged
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.completions import CompletionRequest
from kvreuse.server.schema.replies import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
    Usage,
)
from kvreuse.server.schema.replies import Reuse as Reused
from kvreuse.server.service import Job, Service


async def completions(request: Request) -> Response:
    """Continue one prompt or many."""
    service: Service = request.app.state.service
    raw = await body.read(request, service.config.max_body_bytes)
    asked = body.parse(CompletionRequest, raw)
    service.check_model(asked.model)
    answering = await service.prepare(
        len(raw), lambda: Answering(service, asked), form=has_form(asked)
    )
    if asked.stream:
        return await stream.stream_response(request, answering.events(), answering.headers)
    with service.seats(answering.count):
        outputs = await while_connected(request, answering.outputs())
    answering.headers[reuse.HEADER] = reuse.header([reuse.reuse_of(one) for one in outputs])
    return JSONResponse(answering.reply(outputs), headers=answering.headers)


class Answering:
    """One request on its way: a job for each prompt, and the replies that the answers become."""

    def __init__(self, service: Service, asked: CompletionRequest) -> None:
        """Tokenise the prompts; RequestError or APIError where they cannot be served."""
        self.headers: dict[str, str] = {}
        self._service = service
        self._asked = asked
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._lengths: dict[int, int] = {}  # characters of text so far, by choice
        params = asked.sampling_params(
            max_tokens=asked.max_tokens or 16,
            logprobs=asked.logprobs,
            structured_outputs=form_of(asked, service.llm),
        )
        origin = Origin(
            "/v1/completions",
            service.names[0],
            self._id,
            asked.prompt_cache_key,
            asked.user,
        )
        self._jobs = [
            Job(
                service.inputs.check(
                    service.inputs.plain(
                        one, asked.cache_salt, params=params, retention=asked.retention
                    )
                ),
                origin,
            )
            for one in asked.prompts()
        ]

    @property
    def count(self) -> int:
        """Answers to all prompts together."""
        return len(self._jobs) * self._asked.answers

    async def outputs(self) -> list[RequestOutput]:
        """The results, in the order of the prompts; where one fails the others are aborted."""
        tasks = [asyncio.create_task(self._service.answer(job)) for job in self._jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def reply(self, outputs: Sequence[RequestOutput]) -> CompletionReply:
        """The whole reply."""
        choices: list[CompletionChoice] = [
            {
                "index": at * self._asked.answers + answer.index,
                "text": self._echo(at) + answer.text,
                "logprobs": self._logprobs(answer.logprobs, 0),
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            for at, output in enumerate(outputs)
            for answer in output.outputs
        ]
        reply = self._reply(choices)
        reply["usage"] = reuse.usage_of(outputs)
        return reply

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream. Sets ``headers`` with its first event."""
        told: dict[int, Reused] = {}
        outputs: dict[int, RequestOutput] = {}
        with self._service.seats(self.count):
            streams = [self._service.stream(job) for job in self._jobs]
            async for at, delta in merged(streams):
                if delta.num_cached_tokens is not None:
                    length = len(self._jobs[at].ask.token_ids)
                    told[at] = reuse.reuse(length, delta.num_cached_tokens, delta.miss)
                    self.headers[reuse.HEADER] = reuse.header([told[at]])
                if delta.output is not None:
                    outputs[at] = delta.output
                yield stream.event(self._chunk(at, delta))
            if self._asked.include_usage:
                usage = reuse.usage_of([outputs[at] for at in sorted(outputs)])
                yield stream.event(self._reply([], usage))
        yield stream.DONE

    def _chunk(self, at: int, delta: Delta) -> CompletionReply:
        """What one token adds."""
        index = at * self._asked.answers + delta.index
        begun = self._lengths.get(index)
        text = delta.text if begun is not None else self._echo(at) + delta.text
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs([delta.logprobs], begun or 0) if delta.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": None,
        }
        if delta.logprobs:
            begun = (begun or 0) + len(next(iter(delta.logprobs.values())).decoded_token)
        self._lengths[index] = begun or 0
        return self._reply([choice])

    def _reply(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionReply:
        reply: CompletionReply = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._service.names[0],
            "choices": choices,
            "system_fingerprint": self._service.fingerprint,
        }
        if self._asked.stream and self._asked.include_usage:
            reply["usage"] = usage
        return reply

    def _echo(self, at: int) -> str:
        """The prompt's text, where it is to come before the answer."""
        if not self._asked.echo:
            return ""
        ask = self._jobs[at].ask
        if ask.text is not None:
            return ask.text
        return self._service.llm.tokenizer.decode(list(ask.token_ids), skip_special_tokens=False)

    def _logprobs(self, steps: Sequence[Step] | None, offset: int) -> CompletionLogprobs | None:
        if steps is None:
            return None
        return completion_logprobs(steps, self._asked.logprobs or 0, offset)
