"""Census: which prefixes the index holds, by how many pages lie below them."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

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
    in_use: bool
    """Whether a running sequence uses any of the pages."""

    @property
    def num_tokens(self) -> int:
        """How many tokens all of them share."""
        return len(self.tokens) // TOKEN_BYTES


def census(index: PrefixIndex, counts: Sequence[int], limit: int) -> list[Prefix]:
    """The ``limit`` prefixes with most pages, largest first; ``counts`` are owners by page.

    A prefix is a first page with all that follows it up to where it is continued in two ways. Cost:
    every page is looked at.
    """
    firsts = (page for root in index.roots for page in index.children(root.node))
    found = [_prefix(index, first, counts) for first in firsts]
    return heapq.nlargest(limit, found, key=lambda one: one.pages)


def _prefix(index: PrefixIndex, first: int, counts: Sequence[int]) -> Prefix:
    shared, last = [index.tokens(first)], first
    while not index.is_leaf(last) and index.only_child(last):
        last = index.first_child(last)
        shared.append(index.tokens(last))
    key = index.key(last) if index.is_full(last) else b""
    # Who uses a page uses all before it, so the first one tells of all.
    pages, ends, pending = 0, 0, [first]
    while pending:
        page = pending.pop()
        pages += 1
        ends += index.is_leaf(page)
        pending += index.children(page)
    return Prefix(key, b"".join(shared), pages, ends, counts[first] > 1)
