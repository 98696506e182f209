"""``/v1/cache``: what is resident, what a prompt would find, and how to fill and empty it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.api.miss import Reason
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.bounds import room_for_answer
from kvreuse.kv.cache import KVCache
from kvreuse.kv.census import Prefix
from kvreuse.kv.keys import token_ids
from kvreuse.server import reuse
from kvreuse.server.body import receive
from kvreuse.server.disconnect import while_connected
from kvreuse.server.errors import APIError
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.cache import (
    CacheReply,
    LookupReply,
    PoolReply,
    PrefillReply,
    PrefixReply,
    ResetReply,
)
from kvreuse.server.schema.completions import CachePrompt, PrefillRequest
from kvreuse.server.service import Service, weight

LISTED = 50
"""Prefixes that are listed at most."""


async def show_cache(request: Request) -> Response:
    """The pool, the largest prefixes, and what was found and missed so far."""
    service: Service = request.app.state.service
    cache = service.llm.cache
    pool, prefixes = await service.engine.call(lambda: (_pool(cache), cache.prefixes(LISTED)))
    # Only text takes long to make: of each prefix its first tokens.
    size = sum(len(one.tokens) for one in prefixes) if service.config.log_prompts else 0
    return await service.prepare(size, lambda: JSONResponse(_cache(service, pool, prefixes)))


async def lookup(request: Request) -> Response:
    """How much of a prompt is resident, and whether the rest would fit now; computes nothing."""
    service: Service = request.app.state.service
    asked, size = await receive(request, service, CachePrompt)
    engine, cache = service.llm.engine, service.llm.cache
    ask = await service.prepare(size, lambda: service.inputs.any(asked, asked.cache_salt))
    ids = ask.token_ids
    room = room_for_answer(len(ids), asked.max_tokens or 1, engine.max_model_len, cache.pool)
    hit, available = await service.engine.call(
        lambda: (cache.lookup(ids, ask.cache_salt), cache.num_available)
    )
    # The last token that is generated needs no room.
    pages_for = cache.pool.layout.pages_for
    needed = hit.pages + pages_for(len(ids) + room - 1) - pages_for(len(ids))
    reply: LookupReply = {
        "object": "cache.lookup",
        **reuse.Found(len(ids), hit.tokens, hit.miss).reuse(),
        "needed_pages": needed,
        "available_pages": available,
        "fits": needed <= available,
    }
    return JSONResponse(reply)


async def prefill(request: Request) -> Response:
    """Compute a prompt and keep it, so that prompts which start with it are answered sooner."""
    service: Service = request.app.state.service
    asked, size = await receive(request, service, PrefillRequest)
    params, retention = SamplingParams(temperature=0, max_tokens=1), asked.retention()
    ask = await service.prepare(
        size,
        lambda: service.inputs.check(
            service.inputs.any(asked, asked.cache_salt, params=params, retention=retention)
        ),
    )
    start = time.perf_counter()
    with service.seats.take(1):
        output: RequestOutput = await while_connected(
            request, service.answer(ask, Origin("/v1/cache/prefill", ""))
        )
    seconds = time.perf_counter() - start
    return await service.prepare(
        weight([output]), lambda: _prefilled(service.names[0], output, seconds)
    )


def _prefilled(model: str, output: RequestOutput, seconds: float) -> Response:
    usage = reuse.usage_of([output])
    usage["total_tokens"] -= usage["completion_tokens"]
    usage["completion_tokens"] = 0  # the one token that was generated is no part of the reply
    reply: PrefillReply = {
        "object": "cache.prefill",
        "model": model,
        "usage": usage,
        "seconds": seconds,
    }
    return JSONResponse(reply, headers={reuse.HEADER: reuse.header([reuse.Found.of(output)])})


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


def _pool(cache: KVCache) -> PoolReply:
    pool = cache.pool
    return {
        "page_size": cache.page_size,
        "page_bytes": pool.layout.page_bytes,
        "total_pages": pool.num_pages,
        "free_pages": pool.num_free,
        "used_pages": pool.num_pages - cache.num_available,
        "cached_pages": cache.num_evictable,
        "pinned_pages": cache.num_pinned,
    }


def _cache(service: Service, pool: PoolReply, prefixes: Sequence[Prefix]) -> CacheReply:
    engine, cache = service.llm.engine, service.llm.cache
    counters = engine.counters
    return {
        "object": "cache",
        "model": service.names[0],
        "enabled": cache.enabled,
        "pool": pool,
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
        ids = token_ids(prefix.tokens)
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
