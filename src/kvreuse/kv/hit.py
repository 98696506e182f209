"""Hit: what the cache holds of a prompt."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import Miss, Reason
from kvreuse.kv.prefix import Match


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """What the cache holds of a prompt: from a look-up to the sequence that is opened by it."""

    tokens: int
    """Tokens that need not be computed: at most all but the last."""
    pages: int
    """Pages, free or evictable now, that opening the prompt and reserving all of it takes."""
    miss: Miss | None
    """Why it is no more; None if it could not be more."""
    prompt: bytes = dataclasses.field(repr=False)
    """The prompt's tokens, as the index keeps them."""
    salt: str | None
    match: Match = dataclasses.field(repr=False)
    """The pages."""
    version: int = dataclasses.field(repr=False)
    """The cache's at that time: while it is the same, so is the hit."""

    @property
    def reason(self) -> Reason | None:
        """Why it is no more; None if it could not be more."""
        return None if self.miss is None else self.miss.reason
