"""PrefillRate: what a token of a prompt costs on this engine, as measured while it serves."""

from __future__ import annotations

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
