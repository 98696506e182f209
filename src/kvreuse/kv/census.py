"""Census: which prefixes the index holds, by how many pages lie below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import PrefixIndex


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """Prompts that start alike."""

    key: bytes
    """Of the last page that all of them share; empty for a tail."""
    tokens: bytes
    """The tokens that all of them share, as the index keeps them."""
    pages: int
    """Pages of all of them together."""
    continuations: int
    """Ways in which they end."""
    hits: int
    """Prompts that found the first page."""
    in_use: bool
    """Whether a running sequence uses any of the pages."""
    pinned: bool
    """Whether any of them is pinned."""

    @property
    def num_tokens(self) -> int:
        """How many tokens all of them share."""
        return len(self.tokens) // TOKEN_BYTES


def census(
    index: PrefixIndex,
    counts: Sequence[int],
    hits: Sequence[int],
    pinned: Container[int],
    limit: int,
) -> list[Prefix]:
    """The ``limit`` prefixes with most pages, largest first.

    ``counts`` are owners and ``hits`` uses by page. A prefix is a first page with all that follows
    it up to where it is continued in two ways. Cost: the pages that those listed share.
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
    # Whoever uses or pins a page does so with all before it: the first page tells of all.
    used = owners - pinned > 1  # the index is an owner, and a pin is one
    pages, ends = index.sizes.pages(first), index.sizes.leaves(first)
    return Prefix(key, b"".join(shared), pages, ends, hits, used, pinned)
