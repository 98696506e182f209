"""PrefixIndex: finds the pages that hold the start of a prompt, exact to the token.

A tree with a node for each page: a child's page continues its parent's. Below a node no page's
tokens are the start of another's, so in the sorted list of its children the one that shares most
rows with a prompt is next to where the prompt would stand: one bisection finds a full page, the
best part of one, and a duplicate. Tokens are compared on every hit.

A *tail*, the unfilled last page of a sequence that has ended, is a leaf that is never shared in
place, only copied from.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from collections import Counter, OrderedDict
from weakref import WeakValueDictionary

from kvreuse.kv.keys import TOKEN_BYTES, Hash, page_key, root_key, sha256, shared_tokens
from kvreuse.kv.pool import PageError

_ROOT = -1


class Node:
    """A page of the index: its tokens follow those of ``parent``. The root of a salt has none."""

    __slots__ = ("__weakref__", "child_tokens", "children", "key", "page", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: bytes, page: int, key: bytes) -> None:
        """``key`` is empty for a tail: only full pages have one."""
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.key = key
        self.child_tokens: list[bytes] = []  # ascending; the children in the same order
        self.children: list[Node] = []

    @property
    def is_root(self) -> bool:
        """Whether this is where a salt's sequences start."""
        return self.page == _ROOT

    def nearest(self, tokens: bytes) -> tuple[Node, int] | None:
        """The child that shares most tokens with ``tokens``, and how many; None without any."""
        at = bisect_left(self.child_tokens, tokens)
        best: tuple[Node, int] | None = None
        for child in self.children[max(at - 1, 0) : at + 1]:
            rows = shared_tokens(child.tokens, tokens)
            if best is None or rows > best[1]:
                best = child, rows
        return best


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """What the index has of a prompt."""

    root: Node
    nodes: tuple[Node, ...]
    """Full pages, in order: shared in place."""
    nearest: tuple[Node, int] | None
    """The page that shares most rows after them, and how many (maybe 0); None: there is none."""

    @property
    def node(self) -> Node:
        """The last full page, or the root."""
        return self.nodes[-1] if self.nodes else self.root

    @property
    def partial(self) -> tuple[Node, int] | None:
        """The page to copy rows from, and how many."""
        return self.nearest if self.nearest is not None and self.nearest[1] else None


class PrefixIndex:
    """Pages by the tokens that lead to them. Owns no page itself: its caller counts.

    ``idle`` holds the pages that nobody but the index uses, in the order of eviction. Whoever
    uses a page uses all before it, and pages come to rest last page first: so in ``idle`` every
    page stands behind all that continue it, and the first one is always a leaf. That order is
    least recently used first.
    """

    def __init__(self, space: bytes, page_size: int, digest: Hash = sha256) -> None:
        """``space`` is the namespace of all pages, ``page_size`` tokens fill one."""
        self._space = space
        self._digest = digest
        self._page_bytes = page_size * TOKEN_BYTES
        # A root lives as long as a page below it, or a sequence that started there.
        self._roots: WeakValueDictionary[str | None, Node] = WeakValueDictionary()
        self._first_pages: Counter[bytes] = Counter()  # tokens of first pages, over all salts
        self.nodes: dict[int, Node] = {}
        """Every page of the index, tails too, by page id."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Page ids that only the index uses, the next to be evicted first."""

    def root(self, salt: str | None) -> Node:
        """Where sequences of ``salt`` start: those of different salts have no node in common."""
        root = self._roots.get(salt)
        if root is None:
            root = Node(None, b"", _ROOT, root_key(self._space, salt, self._digest))
            self._roots[salt] = root
        return root

    @property
    def roots(self) -> list[Node]:
        """The roots of all salts that have pages or sequences."""
        return list(self._roots.values())

    def match(self, root: Node, tokens: bytes) -> Match:
        """The longest start of ``tokens`` that pages hold. Changes nothing."""
        size = self._page_bytes
        node = root
        nodes: list[Node] = []
        for start in range(0, len(tokens) - size + 1, size):
            page = tokens[start : start + size]
            at = bisect_left(node.child_tokens, page)
            if at == len(node.children) or node.child_tokens[at] != page:
                break
            node = node.children[at]
            nodes.append(node)
        start = len(nodes) * size
        rest = tokens[start : start + size]
        return Match(root, tuple(nodes), node.nearest(rest) if rest else None)

    def insert(self, parent: Node, tokens: bytes, page: int) -> tuple[Node, Node | None]:
        """Make ``page``, which holds ``tokens`` after ``parent``, findable: full page or tail.

        Returns the node that now stands for these tokens, and a tail that it made superfluous,
        which is no longer in the index. The node's page is another than ``page``, and ``page`` is
        not taken, where the index has these tokens already (for a tail: in a longer page).
        """
        at = bisect_left(parent.child_tokens, tokens)
        if at < len(parent.children) and parent.child_tokens[at].startswith(tokens):
            return parent.children[at], None
        covered = None
        if at and tokens.startswith(parent.child_tokens[at - 1]):
            at -= 1
            covered = parent.children[at]
            self.remove(covered)
        full = len(tokens) == self._page_bytes
        key = page_key(parent.key, tokens, self._digest) if full else b""
        node = Node(parent, tokens, page, key)
        parent.child_tokens.insert(at, tokens)
        parent.children.insert(at, node)
        self.nodes[page] = node
        if parent.is_root:
            self._first_pages[tokens] += 1
        return node, covered

    def remove(self, node: Node) -> None:
        """Forget ``node``, a leaf."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        at = bisect_left(parent.child_tokens, node.tokens)
        del parent.child_tokens[at], parent.children[at]
        del self.nodes[node.page]
        self.idle.pop(node.page, None)
        if parent.is_root:
            self._first_pages[node.tokens] -= 1
            if not self._first_pages[node.tokens]:
                del self._first_pages[node.tokens]

    def evict(self, n: int) -> list[tuple[bytes, int]]:
        """Forget the ``n`` pages that have rested longest; returns their keys and page ids."""
        evicted = []
        for _ in range(n):
            page, _ = self.idle.popitem(last=False)
            node = self.nodes[page]
            self.remove(node)
            evicted.append((node.key, page))
        return evicted

    def next_key(self, node: Node, tokens: bytes) -> bytes:
        """The key that a page of ``tokens`` after ``node`` has, whether there is one or not."""
        return page_key(node.key, tokens, self._digest)

    def is_first_page(self, tokens: bytes) -> bool:
        """Whether sequences of any salt start with the full page ``tokens``."""
        return tokens in self._first_pages

    def check(self) -> None:
        """Raise PageError unless the tree is sound. Cost: everything is looked at."""
        seen: dict[int, Node] = {}
        first_pages: Counter[bytes] = Counter()
        for root in self._roots.values():
            first_pages.update(root.child_tokens)
            pending = [root]
            while pending:
                node = pending.pop()
                self._check_children(node)
                pending += node.children
                seen |= {child.page: child for child in node.children}
        if seen != self.nodes or first_pages != self._first_pages:
            raise PageError("a page of the index is not where its tokens lead, or lies there twice")
        rank = {page: place for place, page in enumerate(self.idle)}
        for page in self.idle:
            for child in self.nodes[page].children:
                if rank.get(child.page, len(rank)) > rank[page]:
                    raise PageError(f"page {page} would be evicted before one that continues it")

    def _check_children(self, node: Node) -> None:
        """Their tokens: in order, none the start of another's; only full pages have children."""
        tokens = node.child_tokens
        if tokens != [child.tokens for child in node.children] or tokens != sorted(tokens):
            raise PageError(f"the children of page {node.page} are out of order")
        if any(after.startswith(before) for before, after in itertools.pairwise(tokens)):
            raise PageError(f"two children of page {node.page} hold the same tokens")
        for child in node.children:
            full = len(child.tokens) == self._page_bytes
            key = page_key(node.key, child.tokens, self._digest) if full else b""
            if child.parent is not node or child.key != key or (child.children and not full):
                raise PageError(f"page {child.page} is not what its place in the index says")
