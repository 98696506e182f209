"""Census: the largest prefixes of the index, by their number of pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from kvreuse.kv.keys import TOKEN_BYTES
from kvreuse.kv.prefix import PrefixIndex

SHOWN_TOKENS = 64
"""Tokens of a prefix that a census lists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that resident prompts share, and the pages of these prompts."""

    key: bytes
    """Key of the last page that all of them share; empty for a tail."""
    tokens: bytes
    """The first of the shared tokens, at most ``SHOWN_TOKENS``, as the index keeps them."""
    num_tokens: int
    """Number of tokens that all of them share."""
    pages: int
    """The pages of all prompts together."""
    continuations: int
    """Number of different ends."""
    hits: int
    """Sequences that reused the first page."""
    in_use: bool
    """Whether a running sequence uses any of the pages."""
    pinned: bool
    """Whether any of the pages is pinned."""


def census(
    index: PrefixIndex,
    counts: Sequence[int],
    hits: Sequence[int],
    pinned: Container[int],
    limit: int,
) -> list[Prefix]:
    """The ``limit`` prefixes with most pages, largest first.

    ``counts`` are owners and ``hits`` uses by page. A prefix is a first page with all that follows
    it up to where it is continued in two ways. Cost: a few array operations over all pages, and a
    few pages of each prefix that is listed.
    """
    firsts = index.sizes.largest(limit)
    return [
        _prefix(index, first, last, hits[first], counts[first], first in pinned)
        for first, last in zip(firsts, _shared_ends(index, firsts), strict=True)
    ]


def _shared_ends(index: PrefixIndex, firsts: Sequence[int]) -> list[int]:
    """For each first page the last page that all prompts from there on share.

    That is the page with the least depth which has no child, or more than one.
    """
    if not firsts:
        return []
    held, num_pages = index.lengths_array > 0, len(index.lengths)
    parents = index.parents_array[held]
    children = np.bincount(parents[parents >= 0], minlength=num_pages)
    ends = np.flatnonzero(held & (children != 1))
    nearest = np.full(num_pages, np.iinfo(np.int64).max)
    keys = index.depths_array[ends].astype(np.int64) * num_pages + ends
    np.minimum.at(nearest, index.sizes.firsts_array[ends], keys)
    last: list[int] = (nearest[list(firsts)] % num_pages).tolist()
    return last


def _prefix(
    index: PrefixIndex, first: int, last: int, hits: int, owners: int, pinned: bool
) -> Prefix:
    page, tokens = first, index.tokens(first)
    while page != last and len(tokens) < SHOWN_TOKENS * TOKEN_BYTES:
        page = index.first_child(page)
        tokens += index.tokens(page)
    # A sequence that uses or pins a page does so with all before it: the first page tells of all.
    used = owners - pinned > 1  # the index is an owner, and a pin is one
    return Prefix(
        key=index.key(last) if index.is_full(last) else b"",
        tokens=tokens[: SHOWN_TOKENS * TOKEN_BYTES],
        num_tokens=index.depths[last] * index.page_size + index.length(last),
        pages=index.sizes.pages(first),
        continuations=index.sizes.leaves(first),
        hits=hits,
        in_use=used,
        pinned=pinned,
    )
