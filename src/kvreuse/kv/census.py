"""Census: the largest prefixes of the index, by their number of pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import PrefixIndex


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that resident prompts share, and the pages of these prompts."""

    key: bytes
    """The key of the last page that all prompts share; empty for a tail."""
    tokens: bytes
    """The tokens that all prompts share, as :func:`~kvreuse.kv.keys.token_bytes`."""
    pages: int
    """The pages of all prompts together."""
    continuations: int
    """Leaves below the prefix: different ends of prompts."""
    hits: int
    """Sequences that reused the first page."""
    in_use: bool
    """Whether a running sequence uses any of the pages."""
    pinned: bool
    """Whether any of the pages is pinned."""

    @property
    def num_tokens(self) -> int:
        """The length of the prefix in tokens."""
        return len(self.tokens) // TOKEN_BYTES


def census(
    index: PrefixIndex,
    counts: Sequence[int],
    hits: Sequence[int],
    pinned: Container[int],
    limit: int,
) -> list[Prefix]:
    """The ``limit`` prefixes with most pages, largest first.

    ``counts`` and ``hits`` are the owners and uses of each page. A prefix is a first page with the
    pages that continue it, up to the first branch. Visits only the pages of these prefixes.
    """
    return [
        _prefix(index, first, hits[first], counts[first], first in pinned)
        for first in index.sizes.largest(limit)
    ]


def _prefix(index: PrefixIndex, first: int, hits: int, owners: int, pinned: bool) -> Prefix:
    shared, last = [index.tokens(first)], first
    while not index.is_leaf(last) and index.only_child(last):
        last = index.first_child(last)
        shared.append(index.tokens(last))
    key = index.key(last) if index.is_full(last) else b""
    # A use or pin of a page includes all pages before it, so the first page has all of them.
    used = owners - pinned > 1  # the index is an owner, and a pin is one
    pages, ends = index.sizes.pages(first), index.sizes.leaves(first)
    return Prefix(key, b"".join(shared), pages, ends, hits, used, pinned)
