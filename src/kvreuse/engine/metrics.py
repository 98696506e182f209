"""Counters of an engine since its start, and the speed of its prefill."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import Reason

_NONE = dict.fromkeys(Reason, 0)


@dataclasses.dataclass(slots=True)
class Counters:
    """Totals since the engine's start; they never decrease."""

    steps: int = 0
    """Batches computed."""
    requests: int = 0
    """Requests accepted; refused ones do not count."""
    finished: int = 0
    """Requests that ended by themselves."""
    aborted: int = 0
    """Requests that were aborted."""
    preemptions: int = 0
    """Times that a request lost its pages to an older one."""
    prompt_tokens: int = 0
    """Tokens of the prompts of admitted requests."""
    cached_tokens: int = 0
    """Those of them that were found in the cache at admission, so that they were not computed."""
    computed_tokens: int = 0
    """Rows that went through the model."""
    page_bytes_read: int = 0
    """Bytes of keys and values that attention has read; a read shared by rows counts once."""
    generated_tokens: int = 0
    """Tokens sampled."""
    misses: dict[Reason, int] = dataclasses.field(default_factory=_NONE.copy)
    """Admitted requests with a miss (less than the whole prompt reused), by its reason."""
    lost_tokens: dict[Reason, int] = dataclasses.field(default_factory=_NONE.copy)
    """Prompt tokens computed because of misses, by reason, without the last token of a prompt."""

    def missed(self, reason: Reason, tokens: int) -> None:
        """Count a request that computes ``tokens`` of its prompt that the cache did not have."""
        self.misses[reason] += 1
        self.lost_tokens[reason] += tokens


LEAST_ROWS = 16
"""Prompt rows below which a step is bound by reading weights, so that its time is ignored."""
HALF_LIFE = 8192
"""Rows after which the weight of a measurement has halved."""


class PrefillRate:
    """Seconds a row: an average, weighted to recent steps, over steps that mostly prefill."""

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """None until a step has been large enough to count."""
        return self._seconds / self._rows if self._rows else None

    def observe(self, prompt_rows: int, rows: int, seconds: float) -> None:
        """Count a step of ``seconds`` with ``rows`` rows, ``prompt_rows`` of them not decodes."""
        if prompt_rows < LEAST_ROWS or 2 * prompt_rows < rows:
            return
        kept = 0.5 ** (rows / HALF_LIFE)
        self._rows = self._rows * kept + rows
        self._seconds = self._seconds * kept + seconds
