"""Miss: why a prefix was not reused, and the first token that was not."""

from __future__ import annotations

import dataclasses
import enum

CACHED_TOKENS = 16
"""How many of the tokens that a prompt parts from are told."""


class Reason(str, enum.Enum):
    """Why no more tokens of a prompt could be reused."""

    COLD = "cold"
    """No page goes on from here: these tokens have not been seen."""
    DIVERGED = "diverged"
    """A page goes on from here, with other tokens."""
    EVICTED = "evicted"
    """There was a page with these tokens, but its memory was needed."""
    NAMESPACE = "namespace"
    """A page has these tokens, but may not be shared."""
    IN_FLIGHT = "in_flight"
    """A running sequence is computing these tokens now."""
    DISABLED = "disabled"
    """Prefix caching is off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """Where reuse of a prompt ended, and why.

    The cache says it in tokens; what the tokens read, where in a chat they lie and what they cost
    is filled in with the result (``kvreuse.text.explain``).
    """

    reason: Reason
    index: int
    """Position of the first token that was not reused."""
    cached: tuple[int, ...] = ()
    """DIVERGED: the tokens that a page holds from ``index`` on, at most ``CACHED_TOKENS``."""
    field: str | None = None
    """NAMESPACE: what differs."""
    before: str = ""
    """The text right before ``index``."""
    prompt_text: str = ""
    """The prompt's own text from ``index`` on."""
    cached_text: str = ""
    """DIVERGED: the text that a page holds from ``index`` on."""
    part: str | None = None
    """The part of a chat that ``index`` lies in, such as ``system text`` or ``message 3 (user)``;
    ``template`` is the chat template's own text. None for other prompts, and at the very start."""
    lost_tokens: int = 0
    """Tokens computed that the cache did not have; the last one, always computed, aside."""
    lost_seconds: float | None = None
    """What computing them takes at the speed measured so far; None: nothing is measured yet."""
