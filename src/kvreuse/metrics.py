"""Counters: what an engine has done since its start, as plain integers."""

from __future__ import annotations

import dataclasses


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
    generated_tokens: int = 0
    """Tokens chosen."""

    def as_dict(self) -> dict[str, int]:
        """All of them, by name."""
        return dataclasses.asdict(self)
