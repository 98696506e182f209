"""Hit: what the cache holds of a prompt, and why it is no more."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import CACHED_TOKENS, Miss, Reason
from kvreuse.kv.evict.ghosts import Ghosts
from kvreuse.kv.keys import TOKEN_BYTES, token_ids
from kvreuse.kv.prefix import Match, PrefixIndex


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


def explain(
    index: PrefixIndex,
    match: Match,
    salt: str | None,
    page: bytes,
    at: int,
    evicted: Ghosts,
) -> Miss:
    """Why ``match``, of a prompt of ``salt``, ends at the token ``at``.

    ``page`` is the full page of the prompt in which it ends, or empty where the prompt ends in it.
    Of other salts only the first page is looked at.
    """
    if page and index.next_name(match, salt, page) in evicted:
        return Miss(Reason.EVICTED, at)
    if page and not match.nodes and index.has_first_page(page):
        return Miss(Reason.NAMESPACE, at, field="cache_salt")
    if match.nearest is not None and at:
        cached = _tokens_from(index, *match.nearest)
        if cached:
            return Miss(Reason.DIVERGED, at, cached=token_ids(cached))
    return Miss(Reason.COLD, at)


def _tokens_from(index: PrefixIndex, page: int, row: int) -> bytes:
    """Tokens of ``page`` from ``row`` on, and of a page that continues it."""
    wanted = CACHED_TOKENS * TOKEN_BYTES
    tokens = index.tokens(page)[row * TOKEN_BYTES :]
    while len(tokens) < wanted and not index.is_leaf(page):
        page = index.first_child(page)
        tokens += index.tokens(page)
    return tokens[:wanted]
