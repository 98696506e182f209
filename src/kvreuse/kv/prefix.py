"""PrefixIndex: the prefix cache's index; finds the pages that hold a prefix of a prompt.

A tree with a node for each page: the tokens of a child follow those of its parent. The number of a
node is its page's id, that of a root (one for each salt) is below zero. The data of nodes lie in
arrays with one entry a page (:mod:`kvreuse.kv.siblings` holds the tokens and finds a child by
them). Tokens are compared on every hit.

A *tail* is the unfilled last page of a sequence that has ended. It is always a leaf. It is never
shared in place, only copied from.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.kv.keys import KEY_BYTES, TOKEN_BYTES, Hash, page_key, sha256, shared_tokens
from kvreuse.kv.pool import PageError
from kvreuse.kv.roots import Root, Roots
from kvreuse.kv.siblings import NONE, Siblings
from kvreuse.kv.sizes_below import SizesBelow

Pages = npt.NDArray[np.int32]

_NO_KEY = bytes(KEY_BYTES)


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """The resident prefix of a prompt."""

    root: Root | None
    """The root of its salt; None if there is no page of this salt."""
    nodes: tuple[int, ...]
    """Full pages that match, in order; they are shared in place."""
    nearest: tuple[int, int] | None
    """The next page that shares most rows, and how many (maybe 0); None if there is no page."""

    @property
    def node(self) -> int:
        """The last full page, or the root; NONE if there is no root."""
        if self.nodes:
            return self.nodes[-1]
        return NONE if self.root is None else self.root.node

    @property
    def partial(self) -> tuple[int, int] | None:
        """The page to copy rows from, and how many."""
        return self.nearest if self.nearest is not None and self.nearest[1] else None


class PrefixIndex:
    """Maps tokens to pages. Does not change reference counts: its caller does."""

    def __init__(self, space: bytes, num_pages: int, page_size: int, digest: Hash = sha256) -> None:
        """For ``num_pages`` pages of ``page_size`` tokens; ``space`` is their namespace."""
        self._digest = digest
        self.page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._siblings = Siblings(num_pages, page_size)
        self._roots = Roots(space, self._siblings, digest)
        self._parents = array("i", [NONE]) * num_pages
        self._tops = array("i", [NONE]) * num_pages  # the tops of the trees of children
        self._depths = array("i", [0]) * num_pages
        self.lengths_array: Pages = np.frombuffer(self._siblings.lengths, dtype=np.int32)
        """``lengths`` as an array."""
        self.parents_array: Pages = np.frombuffer(self._parents, dtype=np.int32)
        """int32[num_pages]: the node that each page of the index continues."""
        self.depths_array: Pages = np.frombuffer(self._depths, dtype=np.int32)
        """``depths`` as an array."""
        self._keys = bytearray(KEY_BYTES * num_pages)  # zeros for a tail
        self._names = memoryview(self._keys).cast("Q")[:: KEY_BYTES // 8]
        self.sizes = SizesBelow(num_pages)
        """The numbers of pages and leaves below each first page."""
        self.num_nodes = 0
        """Pages in the index, tails included."""

    @property
    def lengths(self) -> array[int]:
        """int32[num_pages]: bytes of the tokens in each page; 0 if it is not in the index."""
        return self._siblings.lengths

    @property
    def depths(self) -> array[int]:
        """int32[num_pages]: the number of pages before each page of the index."""
        return self._depths

    @property
    def names(self) -> Sequence[int]:
        """uint64[num_pages]: the first eight bytes of each full page's key; 0 for a tail."""
        return self._names

    def __contains__(self, page: int) -> bool:
        """Whether ``page`` is in the index."""
        return self._siblings.lengths[page] > 0

    def of(self, pages: Pages) -> Pages:
        """Those of ``pages`` that the index has, in their order."""
        return pages[self.lengths_array[pages] > 0]

    def root(self, salt: str | None) -> Root:
        """The root of ``salt``, made if there is none yet."""
        return self._roots.make(salt)

    def parent(self, page: int) -> int:
        """The node that ``page`` continues."""
        return self._parents[page]

    def is_leaf(self, page: int) -> bool:
        """Whether no page continues ``page``."""
        return self._tops[page] < 0

    def children(self, node: int) -> list[int]:
        """The pages that continue ``node``, in the order of their tokens."""
        return self._siblings.below(self._top(node))

    def only_child(self, page: int) -> bool:
        """Whether at most one page continues ``page``."""
        return self._siblings.alone(self._tops[page])

    def first_child(self, page: int) -> int:
        """A page that continues ``page``, the same one until its children change."""
        return self._tops[page]

    def tokens(self, page: int) -> bytes:
        """The tokens of ``page``, as :func:`~kvreuse.kv.keys.token_bytes`."""
        return bytes(self._siblings.tokens(page))

    def length(self, page: int) -> int:
        """The number of tokens in ``page``."""
        return self._siblings.length(page)

    def is_full(self, page: int) -> bool:
        """Whether ``page`` is full; a tail is not."""
        return self._siblings.lengths[page] == self._page_bytes

    def key(self, node: int) -> bytes:
        """The 32 bytes of the key of a full page or of a root; zeros for a tail."""
        if node < 0:
            return self._roots[node].key
        return bytes(self._keys[node * KEY_BYTES : (node + 1) * KEY_BYTES])

    def next_name(self, match: Match, salt: str | None, tokens: bytes) -> int:
        """The name of the full page ``tokens`` after ``match``, which need not be resident."""
        key = self.key(match.nodes[-1]) if match.nodes else self._roots.key(salt)
        return _name(page_key(key, tokens, self._digest))

    def names_of(self, salt: str | None, tokens: bytes) -> Iterator[int]:
        """The names of the full pages of ``tokens``, which need not be resident."""
        size, key = self._page_bytes, self._roots.key(salt)
        for start in range(0, len(tokens) - size + 1, size):
            key = page_key(key, tokens[start : start + size], self._digest)
            yield _name(key)

    def has_first_page(self, tokens: bytes) -> bool:
        """Whether any salt has a first page with exactly these ``tokens``."""
        return self._roots.has_first_page(tokens)

    def match(self, salt: str | None, tokens: bytes) -> Match:
        """The longest prefix of ``tokens`` that pages of ``salt`` hold. Changes nothing."""
        root = self._roots.find(salt)
        if root is None:
            return Match(None, (), None)
        size, exact, tops = self._page_bytes, self._siblings.exact, self._tops
        top = root.top
        nodes: list[int] = []
        for start in range(0, len(tokens) - size + 1, size):
            page = exact(top, tokens[start : start + size])
            if page < 0:
                break
            nodes.append(page)
            top = tops[page]
        start = len(nodes) * size
        rest = tokens[start : start + size]
        return Match(root, tuple(nodes), self._nearest(top, rest) if rest else None)

    def still(self, match: Match, tokens: bytes) -> Match:
        """The part of ``match``, an earlier match of ``tokens``, that is still resident."""
        size, parents, held = self._page_bytes, self._parents, self._siblings.tokens
        if match.root is None:
            return match
        node, count = match.root.node, 0
        for page in match.nodes:
            if parents[page] != node or held(page) != tokens[count * size : (count + 1) * size]:
                break
            node, count = page, count + 1
        nearest = match.nearest
        if nearest is not None:
            page, rest = nearest[0], tokens[count * size : (count + 1) * size]
            there = count == len(match.nodes) and page in self and parents[page] == node
            nearest = (page, shared_tokens(self.tokens(page), rest)) if there else None
        return Match(match.root, match.nodes[:count], nearest)

    def insert(self, parent: int, tokens: bytes, page: int) -> tuple[int, int]:
        """Add ``page``, full or a tail, which holds ``tokens`` after ``parent``.

        Returns the page of the index for these tokens, and a tail that was removed because ``page``
        holds its tokens too, or NONE. If the index already has a page that starts with ``tokens``,
        the first is that page, and ``page`` is not added.
        """
        siblings, top, covered = self._siblings, self._top(parent), NONE
        if top >= 0:
            before, after = siblings.neighbours(top, tokens)
            if after >= 0 and siblings.tokens(after).startswith(tokens):
                return after, NONE
            if before >= 0 and tokens.startswith(siblings.tokens(before)):
                covered = before
                self.remove(covered)
                top = self._top(parent)
        if parent < 0:
            self._roots.count_first(tokens, 1)
        self.sizes.added(parent, page, branches=top >= 0)
        self._set_top(parent, siblings.insert(top, page, tokens))
        self._parents[page] = parent
        self.num_nodes += 1
        full = len(tokens) == self._page_bytes
        key = page_key(self.key(parent), tokens, self._digest) if full else _NO_KEY
        self._keys[page * KEY_BYTES : (page + 1) * KEY_BYTES] = key
        self._depths[page] = self._depths[parent] + 1 if parent >= 0 else 0
        return page, covered

    def append(self, parent: int, tokens: bytes, pages: Sequence[int]) -> None:
        """Add full ``pages`` below the leaf ``parent``, each as the child of the one before."""
        ids, lengths = self._siblings.ids, self._siblings.lengths
        tops, parents, depths = self._tops, self._parents, self._depths
        size, keys, digest = self._page_bytes, self._keys, self._digest
        self.sizes.appended(parent, pages)
        key, depth, start = self.key(parent), depths[parent], 0
        for page in pages:
            its = tokens[start : start + size]
            start += size
            depth += 1
            ids[page * size : (page + 1) * size] = its
            lengths[page] = size
            tops[parent] = page
            parents[page] = parent
            depths[page] = depth
            keys[page * KEY_BYTES : (page + 1) * KEY_BYTES] = key = digest(key + its)
            parent = page
        self.num_nodes += len(pages)

    def remove(self, page: int) -> int:
        """Remove ``page``, a leaf; returns its parent."""
        parent, siblings = self._parents[page], self._siblings
        self.num_nodes -= 1
        if parent < 0:
            self._roots.count_first(self.tokens(page), -1)
            self._set_top(parent, siblings.remove(self._top(parent), page))
            self.sizes.removed(page, branches=False)
        elif self._tops[parent] == page and siblings.lone(page):  # as most are
            self._tops[parent] = NONE
            siblings.lengths[page] = 0
            self.sizes.removed(page, branches=False)
        else:
            self._tops[parent] = siblings.remove(self._tops[parent], page)
            self.sizes.removed(page, branches=True)
        return parent

    def _top(self, node: int) -> int:
        return self._tops[node] if node >= 0 else self._roots.top(node)

    def _set_top(self, node: int, top: int) -> None:
        if node >= 0:
            self._tops[node] = top
        else:
            self._roots.set_top(node, top)

    def _nearest(self, top: int, tokens: bytes) -> tuple[int, int] | None:
        """The page in the tree ``top`` with the longest common prefix, and its length in tokens."""
        best: tuple[int, int] | None = None
        for page in self._siblings.neighbours(top, tokens):
            if page >= 0:
                rows = shared_tokens(self.tokens(page), tokens)
                if best is None or rows > best[1]:
                    best = page, rows
        return best

    def check(self) -> None:
        """Raise PageError unless the tree is consistent. Visits all pages."""
        seen = 0
        first: list[int] = []
        for root in self._roots.all():
            first += self.children(root.node)
            pending = [root.node]
            while pending:
                node = pending.pop()
                children = self.children(node)
                self._check_children(node, children)
                pending += children
                seen += len(children)
        lengths = sum(page in self for page in range(len(self._tops)))
        if seen != self.num_nodes or lengths != seen:
            raise PageError("a page of the index is not reached by its tokens, or is reached twice")
        if not all(self.has_first_page(self.tokens(page)) for page in first):
            raise PageError("a first page is not counted as a first page")
        self.sizes.check(first, self.children)

    def _check_children(self, node: int, children: list[int]) -> None:
        """Check the order of children, that none is a prefix of another, and their entries."""
        tokens = [self.tokens(child) for child in children]
        if tokens != sorted(tokens) or any(
            after.startswith(before) for before, after in itertools.pairwise(tokens)
        ):
            raise PageError(f"the children of page {node} are out of order, or overlap")
        depth = self._depths[node] + 1 if node >= 0 else 0
        for child, its in zip(children, tokens, strict=True):
            full = len(its) == self._page_bytes
            key = page_key(self.key(node), its, self._digest) if full else _NO_KEY
            if (
                self._parents[child] != node
                or self._depths[child] != depth
                or self.key(child) != key
                or not (full or self.is_leaf(child))
            ):
                raise PageError(f"page {child} has a wrong parent, depth, key or children")


def _name(key: bytes) -> int:
    """The name of a page: the first eight bytes of its key, as in ``PrefixIndex.names``."""
    return int.from_bytes(key[:8], sys.byteorder)
