"""What was reused of a request, as clients are told."""

from __future__ import annotations

from collections.abc import Sequence

from kvreuse.api.miss import Miss, Reason
from kvreuse.api.outputs import RequestOutput
from kvreuse.server.schema.replies import Reuse, ReuseUsage, Usage

HEADER = "x-kvreuse-cache"


def reason_for_client(miss: Miss | None) -> str | None:
    """Why no more was reused. What another tenant has is nobody's business: it counts as cold."""
    if miss is None:
        return None
    told = Reason.COLD if miss.reason is Reason.NAMESPACE else miss.reason
    return str(told.value)


def reuse(prompt_tokens: int, cached: int, miss: Miss | None) -> Reuse:
    """Of one prompt."""
    return {
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "computed_tokens": prompt_tokens - cached,
        "reason": reason_for_client(miss),
        "index": None if miss is None else miss.index,
        "part": None if miss is None else miss.part,
    }


def reuse_of(output: RequestOutput) -> Reuse:
    """Of a request that has ended."""
    return reuse(len(output.prompt_token_ids), output.num_cached_tokens, output.miss)


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Of the prompts of one HTTP request."""
    every = [reuse_of(output) for output in outputs]
    prompt = sum(one["prompt_tokens"] for one in every)
    cached = sum(one["cached_tokens"] for one in every)
    generated = sum(output.metrics.num_generated_tokens for output in outputs)
    told: ReuseUsage = {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "reason": every[0]["reason"],
        "index": every[0]["index"],
        "part": every[0]["part"],
    }
    if len(every) > 1:
        told["prompts"] = every
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "kvreuse": told,
    }


def header(every: Sequence[Reuse]) -> str:
    """``cached=96, prompt=128, reason=diverged, index=96``: the first prompt's reason."""
    cached = sum(one["cached_tokens"] for one in every)
    text = f"cached={cached}, prompt={sum(one['prompt_tokens'] for one in every)}"
    if every[0]["reason"] is not None:
        text += f", reason={every[0]['reason']}, index={every[0]['index']}"
    return text
