"""Hit: the cached prefix of a prompt, and the reason why it is not longer."""

from __future__ import annotations

import dataclasses

from kvreuse.api.miss import CACHED_TOKENS, Miss, Reason
from kvreuse.kv.evict.ghosts import Ghosts
from kvreuse.kv.keys import TOKEN_BYTES, token_ids
from kvreuse.kv.prefix import Match, PrefixIndex


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """The cached prefix of a prompt: the result of a look-up, with which a sequence is opened."""

    tokens: int
    """Tokens that need not be computed: at most all but the last."""
    pages: int
    """Free or evictable pages that opening the prompt and reserving all of it takes."""
    miss: Miss | None
    """Why the hit is not longer; None if it is as long as possible."""
    prompt: bytes = dataclasses.field(repr=False)
    """The prompt's tokens, as :func:`~kvreuse.kv.keys.token_bytes`."""
    salt: str | None
    match: Match = dataclasses.field(repr=False)
    """The pages that hold the prefix."""
    version: int = dataclasses.field(repr=False)
    """The version of the cache at the look-up; the hit is valid while it has not changed."""

    @property
    def reason(self) -> Reason | None:
        """The reason of the miss, if there is one."""
        return None if self.miss is None else self.miss.reason


def explain(
    index: PrefixIndex,
    match: Match,
    salt: str | None,
    page: bytes,
    at: int,
    evicted: Ghosts,
) -> Miss:
    """Why ``match``, for a prompt of ``salt``, ends at the token ``at``.

    ``page`` has the tokens of the prompt's page in which the match ends; empty if they do not fill
    it. Only the first page is compared with other salts.
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
    """The next CACHED_TOKENS tokens of ``page``, from ``row`` on, and of pages that continue it."""
    wanted = CACHED_TOKENS * TOKEN_BYTES
    tokens = index.tokens(page)[row * TOKEN_BYTES :]
    while len(tokens) < wanted and not index.is_leaf(page):
        page = index.first_child(page)
        tokens += index.tokens(page)
    return tokens[:wanted]
