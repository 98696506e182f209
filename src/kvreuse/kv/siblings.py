"""Siblings: the children of a page in the prefix index, found by their tokens.

No sibling's tokens are a prefix of another's. So in the order of tokens, the sibling that shares
most tokens with a prompt is next to the place of the prompt: one descent finds a full page, the
longest partial match, and a duplicate. Siblings are a treap (Seidel and Aragon, "Randomized search
trees", 1996): a search tree by tokens and a heap by a hash of the page's id, so that its expected
depth is logarithmic in any order of insertion. It is stored in a few arrays, one entry a page.
"""

from __future__ import annotations

from array import array

from kvreuse.kv.keys import TOKEN_BYTES

NONE = -1
"""No page."""


class Siblings:
    """The tokens of every page, and trees over them. The top page of a tree identifies it."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Room for the tokens of ``num_pages`` pages."""
        self._stride = page_size * TOKEN_BYTES
        self._ids = bytearray(num_pages * self._stride)
        self._lengths = array("i", bytes(4 * num_pages))  # bytes of tokens in each page
        self._left = array("i", [NONE]) * num_pages
        self._right = array("i", [NONE]) * num_pages

    def tokens(self, page: int) -> bytes | bytearray:
        """The tokens of ``page``, as :func:`~kvreuse.kv.keys.token_bytes`."""
        start = page * self._stride
        return self._ids[start : start + self._lengths[page]]

    @property
    def lengths(self) -> array[int]:
        """int32[num_pages]: bytes of the tokens in each page; 0 if it is in no tree."""
        return self._lengths

    @property
    def ids(self) -> bytearray:
        """The tokens of all pages, each at ``page * page_size * TOKEN_BYTES``."""
        return self._ids

    def length(self, page: int) -> int:
        """Tokens in ``page``; 0 if it is in no tree."""
        return self._lengths[page] // TOKEN_BYTES

    def exact(self, top: int, tokens: bytes) -> int:
        """The page below ``top`` that holds exactly ``tokens``, or NONE."""
        ids, lengths, stride = self._ids, self._lengths, self._stride
        while top >= 0:
            start = top * stride
            its = ids[start : start + lengths[top]]
            if its == tokens:
                break
            top = self._left[top] if tokens < its else self._right[top]
        return top

    def neighbours(self, top: int, tokens: bytes) -> tuple[int, int]:
        """The last page ordered before ``tokens`` and the first one not before; NONE for none."""
        before = after = NONE
        while top >= 0:
            if self.tokens(top) < tokens:
                before, top = top, self._right[top]
            else:
                after, top = top, self._left[top]
        return before, after

    def insert(self, top: int, page: int, tokens: bytes) -> int:
        """Add ``page`` with ``tokens``, which no page of the tree has; returns the new top."""
        start = page * self._stride
        self._ids[start : start + len(tokens)] = tokens
        self._lengths[page] = len(tokens)
        if top < 0:
            return page
        above, side, rank = NONE, self._left, _rank(page)
        at = top
        while at >= 0 and _rank(at) >= rank:
            above, side = at, self._left if tokens < self.tokens(at) else self._right
            at = side[at]
        self._split(at, page, tokens)
        if above < 0:
            return page
        side[above] = page
        return top

    def remove(self, top: int, page: int) -> int:
        """Remove ``page`` from the tree; returns the new top."""
        left, right = self._left, self._right
        if top == page and left[page] == right[page]:  # NONE both: it has no siblings
            self._lengths[page] = 0
            return NONE
        above, side, at = NONE, left, top
        if at != page:
            ids, stride, lengths = self._ids, self._stride, self._lengths
            tokens = self.tokens(page)
            while at != page:
                start = at * stride
                side = left if tokens < ids[start : start + lengths[at]] else right
                above, at = at, side[at]
        merged = self._merge(page)
        self._lengths[page] = 0
        if above < 0:
            return merged
        side[above] = merged
        return top

    def lone(self, page: int) -> bool:
        """Whether ``page``, the top of its tree, is its only page."""
        return self._left[page] == self._right[page]  # NONE both

    def alone(self, top: int) -> bool:
        """Whether the tree has at most one page."""
        return top < 0 or (self._left[top] < 0 and self._right[top] < 0)

    def below(self, top: int) -> list[int]:
        """All pages of the tree, in the order of their tokens."""
        pages: list[int] = []
        above: list[int] = []
        while above or top >= 0:
            while top >= 0:
                above.append(top)
                top = self._left[top]
            top = above.pop()
            pages.append(top)
            top = self._right[top]
        return pages

    def _split(self, at: int, page: int, tokens: bytes) -> None:
        """Put the tree ``at`` below ``page``: pages before ``tokens`` left, the others right."""
        low, low_at = self._left, page
        high, high_at = self._right, page
        while at >= 0:
            if self.tokens(at) < tokens:
                low[low_at] = at
                low, low_at = self._right, at
            else:
                high[high_at] = at
                high, high_at = self._left, at
            at = self._right[at] if low_at == at else self._left[at]
        low[low_at] = high[high_at] = NONE

    def _merge(self, page: int) -> int:
        """Merge the two trees below ``page`` into one and return its top; detach ``page``."""
        one, other = self._left[page], self._right[page]
        side, at = self._left, page
        while one >= 0 and other >= 0:
            if _rank(one) >= _rank(other):
                side[at] = one
                side, at = self._right, one
                one = side[at]
            else:
                side[at] = other
                side, at = self._left, other
                other = side[at]
        side[at] = one if one >= 0 else other
        merged = self._left[page]
        self._left[page] = self._right[page] = NONE
        return merged


def _rank(page: int) -> int:
    """A hash of ``page``: two rounds of multiplication and shift, as in MurmurHash3."""
    mixed = (page ^ (page >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)
