"""PrefixIndex: finds the pages that hold the start of a prompt, exact to the token.

A tree with a node for each page: a child's page continues its parent's. A node is named by its
page's id, the root of a salt by a number below zero; what is known of it lies in arrays with an
entry a page (:mod:`kvreuse.kv.siblings` has the tokens and finds a child by them). Tokens are
compared on every hit.

A *tail*, the unfilled last page of a sequence that has ended, is a leaf that is never shared in
place, only copied from.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from kvreuse.kv.keys import TOKEN_BYTES, Naming, page_key, page_name, root_key, shared_tokens
from kvreuse.kv.pool import PageError
from kvreuse.kv.siblings import NONE, Siblings

Pages = npt.NDArray[np.int32]

_FIRST_ROOT = -2  # NONE is no node


class Root:
    """Where the sequences of a salt start. It lives as long as a page below it, or who holds it."""

    __slots__ = ("__weakref__", "key", "name", "node", "top")

    def __init__(self, node: int, key: bytes) -> None:
        self.node = node
        """Its name among the nodes, below zero."""
        self.key = key
        self.name = hash(key) & 0xFFFFFFFFFFFFFFFF
        self.top = NONE
        """The tree of the pages that start here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """What the index has of a prompt."""

    root: Root
    nodes: tuple[int, ...]
    """Full pages, in order: shared in place."""
    nearest: tuple[int, int] | None
    """The page that shares most rows after them, and how many (maybe 0); None: there is none."""

    @property
    def node(self) -> int:
        """The last full page, or the root."""
        return self.nodes[-1] if self.nodes else self.root.node

    @property
    def partial(self) -> tuple[int, int] | None:
        """The page to copy rows from, and how many."""
        return self.nearest if self.nearest is not None and self.nearest[1] else None


class PrefixIndex:
    """Pages by the tokens that lead to them. Owns no page itself: its caller counts."""

    def __init__(
        self, space: bytes, num_pages: int, page_size: int, naming: Naming = page_name
    ) -> None:
        """``space`` is the namespace of all ``num_pages`` pages, ``page_size`` tokens fill one."""
        self._space = space
        self._naming = naming
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: WeakValueDictionary[str | None, Root] = WeakValueDictionary()
        self._by_node: WeakValueDictionary[int, Root] = WeakValueDictionary()
        self._with_pages: dict[int, Root] = {}  # keeps them alive
        self._next_root = _FIRST_ROOT
        # Tokens of first pages, counted over all salts; empty while there is only one.
        self._first_pages: dict[int, int] = {}
        self._siblings = Siblings(num_pages, page_size)
        self._all_lengths = np.frombuffer(self._siblings.lengths, dtype=np.int32)
        self._parents = array("i", [NONE]) * num_pages
        self._tops = array("i", [NONE]) * num_pages  # of the tree of a page's children
        self._depths = array("i", [0]) * num_pages
        self._names = array("Q", bytes(8 * num_pages))  # 0 for a tail
        self.num_nodes = 0
        """Pages of the index, tails too."""

    @property
    def lengths(self) -> array[int]:
        """int32[num_pages]: bytes of the tokens in each page; 0: the index does not have it."""
        return self._siblings.lengths

    @property
    def depths(self) -> array[int]:
        """int32[num_pages]: pages before each page of the index."""
        return self._depths

    def __contains__(self, page: int) -> bool:
        """Whether the index has ``page``."""
        return self._siblings.lengths[page] > 0

    def of(self, pages: Pages) -> Pages:
        """Those of ``pages`` that the index has, in their order."""
        return pages[self._all_lengths[pages] > 0]

    def root(self, salt: str | None) -> Root:
        """Where sequences of ``salt`` start: those of different salts have no node in common."""
        root = self._roots.get(salt)
        if root is None:
            root = Root(self._next_root, root_key(self._space, salt))
            self._next_root -= 1
            self._roots[salt] = root
            self._by_node[root.node] = root
        return root

    @property
    def roots(self) -> list[Root]:
        """The roots of all salts that have pages or sequences."""
        return list(self._roots.values())

    def parent(self, page: int) -> int:
        """The node that ``page`` continues."""
        return self._parents[page]

    def is_leaf(self, page: int) -> bool:
        """Whether no page continues ``page``."""
        return self._tops[page] < 0

    def only_child(self, page: int) -> bool:
        """Whether at most one page continues ``page``."""
        return self._siblings.alone(self._tops[page])

    def children(self, node: int) -> list[int]:
        """The pages that continue ``node``, in the order of their tokens."""
        return self._siblings.below(self._top(node))

    def first_child(self, page: int) -> int:
        """A page that continues ``page``, always the same one while there is no other change."""
        return self._tops[page]

    def tokens(self, page: int) -> bytes:
        """What ``page`` holds."""
        return bytes(self._siblings.tokens(page))

    def length(self, page: int) -> int:
        """How many tokens ``page`` holds."""
        return self._siblings.length(page)

    @property
    def names(self) -> array[int]:
        """uint64[num_pages]: the names of full pages; 0 for a tail."""
        return self._names

    def key(self, node: int) -> bytes:
        """The key of a full page or of a root. Cost: all pages before it are hashed."""
        pages: list[int] = []
        while node >= 0:
            pages.append(node)
            node = self._parents[node]
        key = self._by_node[node].key
        for page in reversed(pages):
            key = page_key(key, self.tokens(page))
        return key

    def is_full(self, page: int) -> bool:
        """Whether ``page`` is full; a tail is not."""
        return self._siblings.lengths[page] == self._page_bytes

    def names_of(self, root: Root, tokens: bytes) -> Iterator[int]:
        """The names that the full pages of ``tokens`` have, or would have."""
        size, name = self._page_bytes, root.name
        for start in range(0, len(tokens) - size + 1, size):
            name = self._naming(name, tokens[start : start + size])
            yield name

    def match(self, root: Root, tokens: bytes) -> Match:
        """The longest start of ``tokens`` that pages hold. Changes nothing."""
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

    def insert(self, parent: int, tokens: bytes, page: int) -> tuple[int, int]:
        """Make ``page``, which holds ``tokens`` after ``parent``, findable: full page or tail.

        Returns the page that now stands for these tokens, and a tail that it made superfluous,
        which is no longer in the index, or NONE. The first is another than ``page``, and ``page``
        is not taken, where the index has these tokens already (for a tail: in a longer page).
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
            self._count_first(tokens, 1)
        self._set_top(parent, siblings.insert(top, page, tokens))
        self._parents[page] = parent
        self.num_nodes += 1
        full = len(tokens) == self._page_bytes
        self._names[page] = self.next_name(parent, tokens) if full else 0
        self._depths[page] = self._depths[parent] + 1 if parent >= 0 else 0
        return page, covered

    def append(self, parent: int, tokens: bytes, pages: Sequence[int]) -> None:
        """Insert full ``pages``, each below the one before, from a leaf on."""
        ids, lengths = self._siblings.ids, self._siblings.lengths
        tops, parents, depths = self._tops, self._parents, self._depths
        size, names, naming = self._page_bytes, self._names, self._naming
        name, depth, start = names[parent], depths[parent], 0
        for page in pages:
            its = tokens[start : start + size]
            start += size
            depth += 1
            ids[page * size : (page + 1) * size] = its
            lengths[page] = size
            tops[parent] = page
            parents[page] = parent
            depths[page] = depth
            names[page] = name = naming(name, its)
            parent = page
        self.num_nodes += len(pages)

    def remove_path(
        self,
        page: int,
        n: int,
        counts: Sequence[int],
        alike: tuple[Sequence[int], Sequence[int], Sequence[int]],
        removed: list[int],
    ) -> int:
        """Forget ``page``, a leaf, and the pages that it continues, at most ``n`` in all.

        Those before it go as far as they are leaves then, have one owner by ``counts``, and the
        same entries as it in ``alike``. They are added to ``removed``; returns the node that the
        last one continued.
        """
        tops, parents, lengths = self._tops, self._parents, self._siblings.lengths
        lone = self._siblings.lone
        one, two, three = alike
        first, second, third = one[page], two[page], three[page]
        while True:
            parent = parents[page]
            removed.append(page)
            if parent < 0 or tops[parent] != page or not lone(page):
                return self.remove(page)
            tops[parent] = NONE
            lengths[page] = 0
            self.num_nodes -= 1
            n -= 1
            if (
                n == 0
                or counts[parent] != 1
                or one[parent] != first
                or two[parent] != second
                or three[parent] != third
            ):
                return parent
            page = parent

    def remove(self, page: int) -> int:
        """Forget ``page``, a leaf; returns the node that it continued."""
        parent = self._parents[page]
        self.num_nodes -= 1
        if parent >= 0:
            self._tops[parent] = self._siblings.remove(self._tops[parent], page)
        else:
            self._count_first(self.tokens(page), -1)
            self._set_top(parent, self._siblings.remove(self._top(parent), page))
        return parent

    def next_name(self, node: int, tokens: bytes) -> int:
        """The name that a page of ``tokens`` after ``node`` has, whether there is one or not."""
        before = self._names[node] if node >= 0 else self._by_node[node].name
        return self._naming(before, tokens)

    def is_first_page(self, tokens: bytes) -> bool:
        """Whether sequences of any salt start with the full page ``tokens``.

        Told by a hash of 64 bits: good for a reason, not for a hit.
        """
        if len(self._with_pages) > 1:
            return hash(tokens) in self._first_pages
        return any(
            self._siblings.exact(root.top, tokens) >= 0 for root in self._with_pages.values()
        )

    def _top(self, node: int) -> int:
        if node >= 0:
            return self._tops[node]
        root = self._with_pages.get(node)
        return NONE if root is None else root.top

    def _set_top(self, node: int, top: int) -> None:
        if node >= 0:
            self._tops[node] = top
            return
        root = self._by_node[node]
        root.top = top
        if top >= 0 and node not in self._with_pages:
            self._with_pages[node] = root
            if len(self._with_pages) == 2:
                self._recount_first()
        elif top < 0:
            self._with_pages.pop(node, None)
            if len(self._with_pages) == 1:
                self._first_pages.clear()

    def _count_first(self, tokens: bytes, change: int) -> None:
        """A first page comes or goes; see :meth:`is_first_page`."""
        if len(self._with_pages) > 1:
            name = hash(bytes(tokens))
            count = self._first_pages.get(name, 0) + change
            if count:
                self._first_pages[name] = count
            else:
                self._first_pages.pop(name, None)

    def _recount_first(self) -> None:
        """A second salt has come up: count what there is."""
        self._first_pages.clear()
        for root in self._with_pages.values():
            for page in self._siblings.below(root.top):
                name = hash(self.tokens(page))
                self._first_pages[name] = self._first_pages.get(name, 0) + 1

    def _nearest(self, top: int, tokens: bytes) -> tuple[int, int] | None:
        """The page below ``top`` that shares most tokens with ``tokens``, and how many."""
        best: tuple[int, int] | None = None
        for page in self._siblings.neighbours(top, tokens):
            if page >= 0:
                rows = shared_tokens(self.tokens(page), tokens)
                if best is None or rows > best[1]:
                    best = page, rows
        return best

    def check(self) -> None:
        """Raise PageError unless the tree is sound. Cost: everything is looked at."""
        seen = 0
        first: list[bytes] = []
        for root in self._roots.values():
            first += [self.tokens(page) for page in self.children(root.node)]
            pending = [root.node]
            while pending:
                node = pending.pop()
                children = self.children(node)
                self._check_children(node, children)
                pending += children
                seen += len(children)
        lengths = sum(page in self for page in range(len(self._tops)))
        if seen != self.num_nodes or lengths != seen:
            raise PageError("a page of the index is not where its tokens lead, or lies there twice")
        if not all(self.is_first_page(tokens) for tokens in first):
            raise PageError("a first page is not known as one")

    def _check_children(self, node: int, children: list[int]) -> None:
        """Their tokens: in order, none the start of another's; only full pages have children."""
        tokens = [self.tokens(child) for child in children]
        if tokens != sorted(tokens) or any(
            after.startswith(before) for before, after in itertools.pairwise(tokens)
        ):
            raise PageError(f"the children of page {node} are out of order, or one holds another")
        depth = self._depths[node] + 1 if node >= 0 else 0
        for child, its in zip(children, tokens, strict=True):
            full = len(its) == self._page_bytes
            name = self.next_name(node, its) if full else 0
            if (
                self._parents[child] != node
                or self._depths[child] != depth
                or self._names[child] != name
                or not (full or self.is_leaf(child))
            ):
                raise PageError(f"page {child} is not what its place in the index says")
