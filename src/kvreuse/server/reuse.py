"""What was reused of a request, as clients see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvreuse.api.miss import Miss, Reason
from kvreuse.api.outputs import RequestOutput
from kvreuse.server.schema.replies import Reuse, ReuseUsage, Usage

HEADER = "x-kvreuse-cache"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What the cache had of one prompt."""

    prompt_tokens: int
    cached_tokens: int
    miss: Miss | None

    @classmethod
    def of(cls, output: RequestOutput) -> Found:
        """Of a request that has ended."""
        return cls(len(output.prompt_token_ids), output.num_cached_tokens, output.miss)

    @property
    def reason(self) -> str | None:
        """Why no more was reused. Clients must not learn of other tenants: that counts as cold."""
        if self.miss is None:
            return None
        shown = Reason.COLD if self.miss.reason is Reason.NAMESPACE else self.miss.reason
        return str(shown.value)

    def reuse(self) -> Reuse:
        """As a part of a reply. For a long chat ``part`` may take long to work out."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.prompt_tokens - self.cached_tokens,
            "reason": self.reason,
            "index": None if self.miss is None else self.miss.index,
            "part": None if self.miss is None else self.miss.part,
        }


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """The usage of one HTTP request, which may have several prompts."""
    every = [Found.of(output).reuse() for output in outputs]
    prompt = sum(one["prompt_tokens"] for one in every)
    cached = sum(one["cached_tokens"] for one in every)
    generated = sum(output.metrics.num_generated_tokens for output in outputs)
    together: ReuseUsage = {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "reason": every[0]["reason"],
        "index": every[0]["index"],
        "part": every[0]["part"],
    }
    if len(every) > 1:
        together["prompts"] = every
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "kvreuse": together,
    }


def header(every: Sequence[Found]) -> str:
    """``cached=96, prompt=128, reason=diverged, index=96``: the first prompt's reason."""
    cached = sum(one.cached_tokens for one in every)
    text = f"cached={cached}, prompt={sum(one.prompt_tokens for one in every)}"
    first = every[0]
    return (
        text if first.miss is None else f"{text}, reason={first.reason}, index={first.miss.index}"
    )
