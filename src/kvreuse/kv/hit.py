"""Hit: what the cache holds of a prompt."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import Miss, Reason


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """What the cache holds of a prompt."""

    tokens: int
    """Tokens that need not be computed: at most all but the last."""
    pages: int
    """Pages, free or evictable now, that opening the prompt and reserving all of it takes."""
    miss: Miss | None
    """Why it is no more; None if it could not be more."""

    @property
    def reason(self) -> Reason | None:
        """Why it is no more; None if it could not be more."""
        return None if self.miss is None else self.miss.reason
