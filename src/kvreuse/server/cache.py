"""``/v1/cache``: what is resident, what would be, and how to change that."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.api.miss import Reason
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.bounds import checked_ids, room_for_answer
from kvreuse.kv.census import Prefix
from kvreuse.kv.keys import token_ids
from kvreuse.server import body, reuse
from kvreuse.server.disconnect import while_connected
from kvreuse.server.errors import APIError
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.cache import (
    CacheReply,
    LookupReply,
    PrefillReply,
    PrefixReply,
    ResetReply,
)
from kvreuse.server.schema.completions import CachePrompt, PrefillRequest
from kvreuse.server.service import Job, Service

LISTED = 50
"""Prefixes that are told at most."""
_TOLD_TOKENS = 64  # of a prefix's text


async def show_cache(request: Request) -> Response:
    """The pool, the largest prefixes, and what was found and missed so far."""
    service: Service = request.app.state.service
    prefixes = await service.engine.call(lambda: service.llm.cache.prefixes(LISTED))
    return JSONResponse(_cache(service, prefixes))


async def lookup(request: Request) -> Response:
    """A dry run: how much of a prompt is resident, and whether the rest would fit now."""
    service: Service = request.app.state.service
    raw = await body.read(request, service.config.max_body_bytes)
    asked = body.parse(CachePrompt, raw)
    service.check_model(asked.model)
    ask = await service.prepare(len(raw), lambda: service.inputs.any(asked, asked.cache_salt))
    engine, cache = service.llm.engine, service.llm.cache
    ids = checked_ids(ask.token_ids, service.llm.shape.vocab_size)
    room = room_for_answer(len(ids), asked.max_tokens or 1, engine.max_model_len, cache.pool)
    hit, available = await service.engine.call(
        lambda: (cache.lookup(ids, ask.cache_salt), cache.num_available)
    )
    # The last token that is generated needs no room.
    growth = cache.pool.layout.pages_for(len(ids) + room - 1) - cache.pool.layout.pages_for(
        len(ids)
    )
    needed = hit.pages + growth
    reply: LookupReply = {
        "object": "cache.lookup",
        **reuse.reuse(len(ids), hit.tokens, hit.miss),
        "needed_pages": needed,
        "available_pages": available,
        "fits": needed <= available,
    }
    return JSONResponse(reply)


async def prefill(request: Request) -> Response:
    """Compute a prompt and keep it, so that what starts with it is answered sooner."""
    service: Service = request.app.state.service
    raw = await body.read(request, service.config.max_body_bytes)
    asked = body.parse(PrefillRequest, raw)
    service.check_model(asked.model)
    fields = {
        "params": SamplingParams(temperature=0, max_tokens=1),
        "retention": asked.retention(),
    }
    ask = await service.prepare(
        len(raw), lambda: service.inputs.any(asked, asked.cache_salt, **fields)
    )
    start = time.perf_counter()
    job = Job(ask, Origin("/v1/cache/prefill", service.names[0], ""))
    with service.seats(1):
        output: RequestOutput = await while_connected(request, service.answer(job))
    usage = reuse.usage_of([output])
    usage["total_tokens"] -= usage["completion_tokens"]
    usage["completion_tokens"] = 0  # the one token that it took is nobody's answer
    reply: PrefillReply = {
        "object": "cache.prefill",
        "model": service.names[0],
        "usage": usage,
        "seconds": time.perf_counter() - start,
    }
    told = {reuse.HEADER: reuse.header([reuse.reuse_of(output)])}
    return JSONResponse(reply, headers=told)


async def reset(request: Request) -> Response:
    """Drop every page that nobody uses; with ``?pinned=true`` also those that are pinned."""
    service: Service = request.app.state.service
    cache = service.llm.cache
    pinned = request.query_params.get("pinned", "false")
    if pinned not in {"true", "false"}:
        raise APIError(400, "pinned must be true or false", code="invalid_value", param="pinned")

    def clear() -> ResetReply:
        if pinned == "true":
            cache.promises.give_up(cache.num_pinned)
        dropped = cache.clear()
        return {
            "object": "cache.reset",
            "dropped_pages": dropped,
            "kept_pages": cache.pool.num_used,
            "pinned_pages": cache.num_pinned,
        }

    return JSONResponse(await service.engine.call(clear))


def _cache(service: Service, prefixes: list[Prefix]) -> CacheReply:
    engine, cache, pool = service.llm.engine, service.llm.cache, service.llm.pool
    counters = engine.counters
    return {
        "object": "cache",
        "model": service.names[0],
        "enabled": cache.enabled,
        "pool": {
            "page_size": cache.page_size,
            "page_bytes": pool.layout.page_bytes,
            "total_pages": pool.num_pages,
            "free_pages": pool.num_free,
            "used_pages": pool.num_pages - cache.num_available,
            "cached_pages": cache.num_evictable,
            "pinned_pages": cache.num_pinned,
        },
        "requests": {
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "total": counters.requests,
            "finished": counters.finished,
            "aborted": counters.aborted,
            "preemptions": counters.preemptions,
        },
        "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        "generated_tokens": counters.generated_tokens,
        "hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
        "evicted_pages": cache.num_evicted,
        "merged_pages": cache.num_merged,
        "misses": {
            reason.value: {
                "requests": counters.misses[reason],
                "tokens": counters.lost_tokens[reason],
            }
            for reason in Reason
        },
        "prefixes": [_prefix(service, one) for one in prefixes],
        "uptime_seconds": time.time() - service.started,
    }


def _prefix(service: Service, prefix: Prefix) -> PrefixReply:
    text = None
    if service.config.log_prompts:
        ids = token_ids(prefix.tokens)[:_TOLD_TOKENS]
        text = service.llm.tokenizer.decode(ids, skip_special_tokens=False)
    return {
        "key": prefix.key.hex()[:12],
        "tokens": prefix.num_tokens,
        "pages": prefix.pages,
        "continuations": prefix.continuations,
        "hits": prefix.hits,
        "in_use": prefix.in_use,
        "pinned": prefix.pinned,
        "text": text,
    }
