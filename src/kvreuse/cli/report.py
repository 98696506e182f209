"""What a finished answer cost: one line for a person, one object for a program."""

from __future__ import annotations

from typing import Any

from kvreuse.api.outputs import RequestOutput
from kvreuse.cli.terminal import duration, plural
from kvreuse.kv.pool import PagePool
from kvreuse.sizes import format_size


def summary(output: RequestOutput, pool: PagePool, max_tokens: int | None) -> str:
    """Tokens and their rates, time to the first one, pages and bytes: one line."""
    took, first = output.metrics, output.metrics.time_to_first_token
    parts = [
        _tokens("prompt", took.num_prompt_tokens, took.prefill_tokens_per_second)
        + f", {output.num_cached_tokens:,} cached",
        _tokens("generated", took.num_generated_tokens, took.decode_tokens_per_second),
        f"first token {duration(first)}" if first is not None else "no token",
        f"KV {plural(took.num_pages, 'page')}, "
        f"{format_size(took.kv_bytes)} of {format_size(pool.nbytes)}{_stored(pool)}",
    ]
    if output.outputs[0].finish_reason == "length":
        full = took.num_generated_tokens == max_tokens
        parts.append("cut by --max-tokens" if full else "the context is full")
    return " | ".join(parts)


def as_json(
    output: RequestOutput, pool: PagePool, model: str, load_seconds: float
) -> dict[str, Any]:
    """The answer, how it ended, and what it cost; times in seconds, sizes in bytes."""
    [answer], took = output.outputs, output.metrics
    return {
        "model": model,
        "prompt": output.prompt,
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "usage": {
            "prompt_tokens": took.num_prompt_tokens,
            "completion_tokens": took.num_generated_tokens,
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
        },
        "timings": {
            "load_seconds": load_seconds,
            "time_to_first_token": took.time_to_first_token,
            "prefill_tokens_per_second": took.prefill_tokens_per_second,
            "decode_tokens_per_second": took.decode_tokens_per_second,
        },
        "kv": {
            "pages": took.num_pages,
            "bytes": took.kv_bytes,
            "dtype": pool.layout.codec.name,
            "page_size": pool.layout.page_size,
            "pool_pages": pool.num_pages,
            "pool_bytes": pool.nbytes,
        },
    }


def _stored(pool: PagePool) -> str:
    """How keys and values are stored, where that is not as they are."""
    codec = pool.layout.codec
    return "" if codec.is_plain else f" in {codec.describe()}"


def _tokens(what: str, count: int, per_second: float | None) -> str:
    speed = f" at {per_second:,.0f} tok/s" if per_second is not None else ""
    return f"{what} {count:,}{speed}"
