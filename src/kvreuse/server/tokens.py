"""``/tokenize``, ``/detokenize`` and ``/apply-template``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.engine.bounds import checked_ids
from kvreuse.server.body import receive
from kvreuse.server.schema.completions import DetokenizeRequest, TemplateRequest, TokenizeRequest
from kvreuse.server.schema.replies import TextReply, TokensReply
from kvreuse.server.service import Service


async def tokenize(request: Request) -> Response:
    """The tokens of a text or a conversation."""
    service: Service = request.app.state.service
    asked, size = await receive(request, service, TokenizeRequest)
    return await service.prepare(size, lambda: JSONResponse(_tokens(service, asked)))


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    service: Service = request.app.state.service
    asked, size = await receive(request, service, DetokenizeRequest)
    tokenizer = service.llm.tokenizer

    def text() -> Response:
        if asked.tokens:
            checked_ids(asked.tokens, tokenizer.vocab_size)
        skip = bool(asked.skip_special_tokens)
        return _text(tokenizer.decode(asked.tokens, skip_special_tokens=skip))

    return await service.prepare(size, text)


async def apply_template(request: Request) -> Response:
    """The text that the chat template makes of a conversation."""
    service: Service = request.app.state.service
    asked, size = await receive(request, service, TemplateRequest)
    return await service.prepare(size, lambda: _text(service.inputs.chat(asked, None).text or ""))


def _tokens(service: Service, asked: TokenizeRequest) -> TokensReply:
    tokenizer = service.llm.tokenizer
    if asked.messages is not None:
        ids = [int(one) for one in service.inputs.chat(asked.templated(), None).token_ids]
    else:
        text = asked.prompt if asked.prompt is not None else asked.content or ""
        # By default llama.cpp adds no special tokens to a content; vLLM does to a prompt.
        special = asked.content is None
        for flag in (asked.add_special, asked.add_special_tokens):
            special = special if flag is None else flag
        ids = tokenizer.encode(
            text, add_special_tokens=special, parse_special=asked.parse_special is not False
        )
    return {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": service.llm.engine.max_model_len,
        "token_strs": [tokenizer.token_text(i) for i in ids] if asked.return_token_strs else None,
    }


def _text(text: str) -> Response:
    reply: TextReply = {"prompt": text, "content": text}
    return JSONResponse(reply)
