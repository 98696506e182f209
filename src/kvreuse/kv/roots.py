"""Roots: one root of the prefix index for each salt."""

from __future__ import annotations

import weakref
from weakref import WeakValueDictionary

from kvreuse.kv.keys import Hash, root_key
from kvreuse.kv.siblings import NONE, Siblings

_FIRST_ROOT = -2  # -1 is NONE


class Root:
    """The root of one salt. It lives as long as it has pages, or a sequence refers to it."""

    __slots__ = ("__weakref__", "key", "node", "top")

    def __init__(self, node: int, key: bytes) -> None:
        self.node = node
        """The number of this node, below zero."""
        self.key = key
        self.top = NONE
        """The tree (:class:`Siblings`) of its children; NONE if there are none."""


class Roots:
    """The root of every salt that has pages or sequences."""

    def __init__(self, space: bytes, siblings: Siblings, digest: Hash) -> None:
        """``space`` is the namespace of all pages; ``siblings`` holds their tokens."""
        self._space = space
        self._siblings = siblings
        self._digest = digest
        self._by_salt: WeakValueDictionary[str | None, Root] = WeakValueDictionary()
        self._by_node: WeakValueDictionary[int, Root] = WeakValueDictionary()
        self._with_pages: dict[int, Root] = {}  # strong references
        self._next_node = _FIRST_ROOT
        self._free_nodes: list[int] = []  # numbers of dead roots, to be reused
        # First pages of all salts, counted by a hash of their tokens; empty for one salt only.
        self._first_pages: dict[int, int] = {}

    def find(self, salt: str | None) -> Root | None:
        """The root of ``salt``, or None if there is no page or sequence of this salt."""
        return self._by_salt.get(salt)

    def make(self, salt: str | None) -> Root:
        """The root of ``salt``, made if there is none yet."""
        root = self._by_salt.get(salt)
        if root is None:
            root = Root(self._new_node(), self.key(salt))
            weakref.finalize(root, self._free_nodes.append, root.node).atexit = False
            self._by_salt[salt] = root
            self._by_node[root.node] = root
        return root

    def key(self, salt: str | None) -> bytes:
        """The key of the root of ``salt``, which need not exist."""
        return root_key(self._space, salt, self._digest)

    def __getitem__(self, node: int) -> Root:
        """The root with this number."""
        return self._by_node[node]

    def all(self) -> list[Root]:
        """Every root."""
        return list(self._by_salt.values())

    def top(self, node: int) -> int:
        """The tree of the children of the root ``node``; NONE if there are none."""
        root = self._with_pages.get(node)
        return NONE if root is None else root.top

    def set_top(self, node: int, top: int) -> None:
        """Set the tree of the children of the root ``node`` after a change."""
        root = self._by_node[node]
        root.top = top
        if top >= 0 and node not in self._with_pages:
            self._with_pages[node] = root
            if len(self._with_pages) == 2:
                self._count_all()
        elif top < 0:
            self._with_pages.pop(node, None)
            if len(self._with_pages) == 1:
                self._first_pages.clear()

    def count_first(self, tokens: bytes, change: int) -> None:
        """Count a first page with these tokens that is added (1) or removed (-1)."""
        if len(self._with_pages) > 1:
            name = hash(bytes(tokens))
            count = self._first_pages.get(name, 0) + change
            if count:
                self._first_pages[name] = count
            else:
                self._first_pages.pop(name, None)

    def has_first_page(self, tokens: bytes) -> bool:
        """Whether any salt has a first page with exactly these ``tokens``.

        Uses a hash of 64 bits: good enough for the reason of a miss, not for a hit.
        """
        if len(self._with_pages) > 1:
            return hash(tokens) in self._first_pages
        return any(
            self._siblings.exact(root.top, tokens) >= 0 for root in self._with_pages.values()
        )

    def _new_node(self) -> int:
        if self._free_nodes:
            return self._free_nodes.pop()
        self._next_node -= 1
        return self._next_node + 1

    def _count_all(self) -> None:
        """Count all first pages, when a second salt gets pages."""
        self._first_pages.clear()
        for root in self._with_pages.values():
            for page in self._siblings.below(root.top):
                name = hash(bytes(self._siblings.tokens(page)))
                self._first_pages[name] = self._first_pages.get(name, 0) + 1
