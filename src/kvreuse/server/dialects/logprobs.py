"""Log-probabilities in the two forms of OpenAI's replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from kvreuse.api.outputs import Logprob
from kvreuse.server.schema.replies import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

Step = dict[int, Logprob]
"""The candidates for one token: the chosen one first, then the most probable ones."""
LEAST = -9999.0
"""Stands for the logarithm of zero, which JSON has no number for."""


def chat_logprobs(
    steps: Iterable[Step], top: int, token_bytes: Callable[[int], bytes]
) -> ChatLogprobs:
    """Log-probabilities of tokens of a chat's answer, with the ``top`` most probable ones."""
    content: list[TokenLogprob] = []
    for step in steps:
        chosen, *_ = entries = [_entry(token, one, token_bytes) for token, one in step.items()]
        best = sorted(step.values(), key=lambda one: one.rank)[:top]
        by_rank = {one.rank: entry for one, entry in zip(step.values(), entries, strict=True)}
        content.append({**chosen, "top_logprobs": [by_rank[one.rank] for one in best]})
    return {"content": content, "refusal": None}


def completion_logprobs(steps: Sequence[Step], top: int, offset: int) -> CompletionLogprobs:
    """Log-probabilities of tokens whose text begins at the character ``offset`` of the answer."""
    result: CompletionLogprobs = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    best_of: list[dict[str, float] | None] = []
    for step in steps:
        chosen = next(iter(step.values()))
        result["tokens"].append(chosen.decoded_token)
        result["token_logprobs"].append(finite(chosen.logprob))
        result["text_offset"].append(offset)
        offset += len(chosen.decoded_token)
        best: dict[str, float] = {}
        for one in sorted(step.values(), key=lambda one: one.rank):
            if one.rank <= top or one is chosen:
                best.setdefault(one.decoded_token, finite(one.logprob))
        best_of.append(best)
    result["top_logprobs"] = best_of if top else None
    return result


def finite(logprob: float) -> float:
    """``logprob``, or ``LEAST`` where it is not finite."""
    return logprob if math.isfinite(logprob) else LEAST


def _entry(token: int, one: Logprob, token_bytes: Callable[[int], bytes]) -> TopLogprob:
    return {
        "token": one.decoded_token,
        "logprob": finite(one.logprob),
        "bytes": list(token_bytes(token)),
    }
