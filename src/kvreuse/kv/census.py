"""Census: which prefixes the index holds, by how many pages lie below them."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Container

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import Node


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


def census(roots: list[Node], idle: Container[int], limit: int) -> list[Prefix]:
    """The ``limit`` prefixes with most pages, largest first; ``idle`` pages nobody uses.

    A prefix is a first page with all that follows it up to where it is continued in two ways. Cost:
    every page is looked at.
    """
    found = [_prefix(first, idle) for root in roots for first in root.children]
    return heapq.nlargest(limit, found, key=lambda one: one.pages)


def _prefix(first: Node, idle: Container[int]) -> Prefix:
    shared, last = [first.tokens], first
    while len(last.children) == 1:
        last = last.children[0]
        shared.append(last.tokens)
    # Who uses a page uses all before it, so the first one tells of all.
    pages, ends, pending = 0, 0, [first]
    while pending:
        node = pending.pop()
        pages += 1
        ends += not node.children
        pending += node.children
    return Prefix(last.key, b"".join(shared), pages, ends, first.page not in idle)
