"""What an engine measures of itself: counters since its start, and the speed of prefill."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import Reason

_NONE = dict.fromkeys(Reason, 0)


@dataclasses.dataclass(slots=True)
class Counters:
    """They only grow. ``cached_tokens`` of ``prompt_tokens`` were not computed at admission."""

    steps: int = 0
    """Batches computed."""
    requests: int = 0
    """Requests taken on; refused ones are not."""
    finished: int = 0
    """Requests that came to their own end."""
    aborted: int = 0
    """Requests that somebody ended."""
    preemptions: int = 0
    """Times that a request lost its pages to an older one."""
    prompt_tokens: int = 0
    """Tokens of the prompts of admitted requests."""
    cached_tokens: int = 0
    """Those of them that were found in the cache."""
    computed_tokens: int = 0
    """Rows that went through the model."""
    page_bytes_read: int = 0
    """Bytes of keys and values that attention has read. What rows read together counts once."""
    generated_tokens: int = 0
    """Tokens chosen."""
    misses: dict[Reason, int] = dataclasses.field(default_factory=_NONE.copy)
    """Admitted requests of which more could not be reused, by reason."""
    lost_tokens: dict[Reason, int] = dataclasses.field(default_factory=_NONE.copy)
    """Tokens of their prompts that were computed for it; the last one, always computed, aside."""

    def missed(self, reason: Reason, tokens: int) -> None:
        """A request computes ``tokens`` of its prompt that the cache did not have."""
        self.misses[reason] += 1
        self.lost_tokens[reason] += tokens

    def as_dict(self) -> dict[str, int]:
        """All of them, by name; those by reason as ``misses.cold``."""
        plain: dict[str, int] = {}
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, dict):
                plain |= {f"{name}.{reason.value}": count for reason, count in value.items()}
            else:
                plain[name] = value
        return plain


LEAST_ROWS = 16
"""Rows below which a step is a pass over the weights, and says nothing of a row's own cost."""
HALF_LIFE = 8192
"""Rows after which a measurement counts half."""


class PrefillRate:
    """Seconds a row, over the steps that mostly computed prompts; the latest count most."""

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """None until a step was large enough."""
        return self._seconds / self._rows if self._rows else None

    def observe(self, prompt_rows: int, rows: int, seconds: float) -> None:
        """A step computed ``rows``, of which ``prompt_rows`` were not decoding, in ``seconds``."""
        if prompt_rows < LEAST_ROWS or 2 * prompt_rows < rows:
            return
        kept = 0.5 ** (rows / HALF_LIFE)
        self._rows = self._rows * kept + rows
        self._seconds = self._seconds * kept + seconds
