"""Miss: why a prefix was not reused, and the first token that was not."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple

CACHED_TOKENS = 16
"""Most tokens of the cached sequence that a miss shows."""


class Reason(str, enum.Enum):
    """Why no more tokens of a prompt could be reused."""

    COLD = "cold"
    """No page continues here: these tokens have not been seen."""
    DIVERGED = "diverged"
    """A page continues here, with other tokens."""
    EVICTED = "evicted"
    """There was a page with these tokens, but it was evicted."""
    NAMESPACE = "namespace"
    """A page has these tokens, but belongs to another salt."""
    IN_FLIGHT = "in_flight"
    """A running sequence is computing these tokens now."""
    DISABLED = "disabled"
    """Prefix caching is off."""


class Words(NamedTuple):
    """The text around a miss, and the part of a chat that it lies in."""

    before: str = ""
    """The text right before the first token that was not reused."""
    prompt_text: str = ""
    """The prompt's own text from there on."""
    cached_text: str = ""
    """DIVERGED: the text that a page holds from there on."""
    part: str | None = None
    """The part of a chat that it lies in, such as ``system text`` or ``message 3 (user)``;
    ``template`` is the chat template's own text. None for other prompts, and at the very start."""


@dataclasses.dataclass(frozen=True)
class Miss:
    """Where reuse of a prompt ended, and why.

    The cache says it in tokens. Their text is worked out when it is read first, in the thread that
    reads it: for a long chat this may take a second.
    """

    reason: Reason
    index: int
    """Position of the first token that was not reused."""
    cached: tuple[int, ...] = ()
    """DIVERGED: the tokens that a page holds from ``index`` on, at most ``CACHED_TOKENS``."""
    field: str | None = None
    """NAMESPACE: what differs."""
    lost_tokens: int = 0
    """Prompt tokens that had to be computed, without the last one, which always is."""
    lost_seconds: float | None = None
    """Seconds to compute them at the speed measured so far; None before a measurement."""
    read: Callable[[], Words] = dataclasses.field(default=Words, compare=False, repr=False)
    """Works out ``words``, and keeps them."""

    @property
    def words(self) -> Words:
        """The text of the tokens around ``index``."""
        return self.read()

    @property
    def before(self) -> str:
        """See :class:`Words`."""
        return self.words.before

    @property
    def prompt_text(self) -> str:
        """See :class:`Words`."""
        return self.words.prompt_text

    @property
    def cached_text(self) -> str:
        """See :class:`Words`."""
        return self.words.cached_text

    @property
    def part(self) -> str | None:
        """See :class:`Words`."""
        return self.words.part
