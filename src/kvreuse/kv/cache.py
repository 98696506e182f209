"""KVCache: the only place where pages change hands.

Who owns a page::

    free list --reserve--> a table --commit (full) or close (tail)--> the table and the index
        ^                     |                                                 |
        |<----- close --------+                                     close: the index alone
        |<----------------------------- evict ----------------------------------+

A page counts its owners: tables, sequences that will copy from it, and the index.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from kvreuse.kv.census import Prefix, census
from kvreuse.kv.keys import TOKEN_BYTES, Hash, Tokens, sha256, token_bytes
from kvreuse.kv.pool import PageError, PagePool
from kvreuse.kv.prefix import Match, Node, PrefixIndex
from kvreuse.kv.sequence import SeqKV
from kvreuse.kv.why import EvictedKeys, Miss, Reason, explain

Copy = tuple[int, int, int]
"""(source page, destination page, tokens): the first rows of a page that another needs as well."""

_REMEMBERED = 4
"""Evicted pages whose keys are remembered, for each page of the pool."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """What the cache holds of a prompt."""

    tokens: int
    """Tokens that need not be computed: at most all but the last."""
    pages: int
    """Pages, free or evictable now, that opening the prompt and reserving all of it takes."""
    miss: Miss | None
    """Why it is no more; None if it could not be more."""

    @property
    def reason(self) -> Reason | None:
        """Why it is no more; None if it could not be more."""
        return None if self.miss is None else self.miss.reason


class KVCache:
    """Five verbs over a pool: lookup, open, reserve, commit, close. Not thread-safe.

    The conservation law (:meth:`check`) holds after every method, also one that raised: free and
    owned pages are all pages, a page's count is the number of its owners, every page that is
    found in full is full, and no tokens lie in two pages of the index.
    """

    def __init__(
        self,
        pool: PagePool,
        namespace: bytes,
        *,
        enable_prefix_caching: bool = True,
        digest: Hash = sha256,
    ) -> None:
        """``namespace`` is everything but tokens and salt that the bits of a page depend on."""
        self.namespace = namespace
        self.enabled = enable_prefix_caching
        self.page_size = pool.layout.page_size
        self.pool = pool
        self.num_evicted = 0
        """Pages evicted so far."""
        self.num_merged = 0
        """Pages given back so far because another held the same tokens."""
        self._page_bytes = self.page_size * TOKEN_BYTES
        self._index = PrefixIndex(namespace, self.page_size, digest)
        self._evicted = EvictedKeys(_REMEMBERED * pool.num_pages)
        self._sequences: set[SeqKV] = set()
        self._computing: Counter[tuple[Node, bytes]] = Counter()  # full pages that will be written

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return self.pool.num_free

    @property
    def num_evictable(self) -> int:
        """Pages that only the index owns."""
        return len(self._index.idle)

    @property
    def num_available(self) -> int:
        """Pages that :meth:`reserve` can give."""
        return self.pool.num_free + len(self._index.idle)

    def lookup(self, ids: Tokens, salt: str | None = None) -> Hit:
        """What is resident of ``ids``, by its tokens. Changes nothing."""
        total = self.pool.layout.pages_for(len(ids))
        if not self.enabled:
            return Hit(0, total, Miss(Reason.DISABLED, 0))
        tokens = token_bytes(ids)
        match = self._match(tokens, salt)
        hit, pages = len(match.nodes) * self.page_size, [node.page for node in match.nodes]
        if match.partial is not None:
            source, rows = match.partial
            hit += rows
            pages.append(source.page)
        idle = self._index.idle
        taken = total - len(match.nodes) + sum(page in idle for page in pages)
        return Hit(hit, taken, self._miss(match, tokens, hit))

    def open(self, ids: Tokens, salt: str | None = None) -> tuple[SeqKV, list[Copy]]:
        """A sequence that starts with what is resident of ``ids``, ``written`` tokens.

        Where prompts part inside a page, its shared rows belong into a page of the sequence's
        own: the copies returned must be done before anything is computed for it. Their source is
        kept until the first :meth:`commit`, or :meth:`close`. Without a page to be had for them
        those rows are not reused.
        """
        if not self.enabled:
            return self._started(SeqKV(self.page_size, None, []), ids), []
        match = self._match(token_bytes(ids), salt)
        pages = [node.page for node in match.nodes]
        self._take(pages)
        seq = SeqKV(self.page_size, match.node, pages)
        copies: list[Copy] = []
        if match.partial is not None:
            copies = self._open_partial(seq, *match.partial)
        return self._started(seq, ids), copies

    def fork(self, seq: SeqKV, ids: Tokens) -> tuple[SeqKV, list[Copy]] | None:
        """Another sequence with all that ``seq`` has written; None if there is no page for it.

        Full pages are shared; rows of an unfilled page are copied, as in :meth:`open`. ``seq``
        must have committed something, so that its own copies are done.
        """
        self._must_be_open(seq)
        if seq.source is not None:
            raise PageError("a sequence was forked before its own copies were done")
        full, rows = divmod(seq.written, self.page_size)
        pages = seq.pages
        source = pages[full] if rows else None
        owned = self._alloc(1) if rows else []
        if owned is None:
            return None
        self._take(pages[:full])
        forked = SeqKV(self.page_size, seq.node, pages[:full])
        if source is None:
            return self._started(forked, ids), []
        self._take([source])
        forked.source = source
        forked.extend(owned)
        forked.written += rows
        return self._started(forked, ids), [(source, owned[0], rows)]

    def reserve(self, seq: SeqKV, n: int) -> bool:
        """Room for ``n`` tokens after those written, evicting as needed; False: nothing changed."""
        self._must_be_open(seq)
        missing = self.pool.layout.pages_for(seq.written + n) - seq.num_pages
        if missing <= 0:
            return True
        pages = self._alloc(missing)
        if pages is None:
            return False
        seq.extend(pages)
        return True

    def commit(self, seq: SeqKV, ids: Tokens, n: int) -> None:
        """``n`` more tokens are written, and the copies of :meth:`open` are done.

        ``ids`` are all tokens known of the sequence, from its first on. Pages that became full
        can be found from now on; one whose tokens the index has already is given back, and the
        table names the index's page instead.
        """
        self._must_be_open(seq)
        written = seq.written + n
        if n < 0 or written > min(seq.reserved, len(ids)):
            raise PageError(f"{written} tokens written of {len(ids)}, with room for {seq.reserved}")
        first, end = seq.written // self.page_size, written // self.page_size
        filled = b""
        if first < end and self.enabled:
            filled = token_bytes(ids[first * self.page_size : end * self.page_size])
        self._release_source(seq)
        seq.written = written
        if filled:
            for at in range(first, end):
                self._publish(seq, at, self._page_tokens(filled, at - first))
            self._announce(seq, ids)

    def close(self, seq: SeqKV, ids: Tokens) -> None:
        """The one way out: finish, abort, preempt. The unfilled last page stays as a tail.

        Its pages are free, or evictable unless others use them too.
        """
        self._must_be_open(seq)
        if self.enabled and seq.source is None:
            self._keep_tail(seq, ids)
        seq.closed = True
        self._sequences.remove(seq)
        self._announce(seq, ())
        self._release_source(seq)
        self._drop(reversed(seq.pages))  # last page first: see PrefixIndex.idle
        seq.num_pages = seq.written = 0
        seq.node = None

    def clear(self) -> int:
        """Forget every page that no sequence uses; how many those were."""
        return self._evict(self.num_evictable)

    def prefixes(self, limit: int) -> list[Prefix]:
        """The ``limit`` largest prefixes. Cost: everything is looked at."""
        return census(self._index.roots, self._index.idle, limit)

    def check(self) -> None:
        """Raise PageError unless the conservation law holds. Cost: everything is looked at."""
        index = self._index
        owners = [seq.pages for seq in self._sequences]
        owners += [[seq.source] for seq in self._sequences if seq.source is not None]
        self.pool.check([*owners, list(index.nodes)])
        index.check()
        if set(index.idle) != {page for page in index.nodes if self.pool.count(page) == 1}:
            raise PageError("a page rests and is used, or neither")
        for seq in self._sequences:
            self._check_sequence(seq)

    def _check_sequence(self, seq: SeqKV) -> None:
        if not seq.written <= seq.reserved:
            raise PageError(f"{seq.written} tokens written with room for {seq.reserved}")
        node, full = seq.node, seq.written // self.page_size
        if node is None:
            return
        for page in reversed(seq.pages[:full]):
            if node is None or node.page != page or not node.key:
                raise PageError(f"page {page} is full, but is not the index's for its tokens")
            node = node.parent
        if node is None or not node.is_root:
            raise PageError("a sequence is shorter than the pages before its last one")

    def _match(self, tokens: bytes, salt: str | None) -> Match:
        """All but the last of ``tokens``, which has to be computed for its logits."""
        return self._index.match(self._index.root(salt), tokens[:-TOKEN_BYTES])

    def _page_tokens(self, tokens: bytes, at: int) -> bytes:
        """The tokens of page ``at``; empty unless they fill it."""
        page = tokens[at * self._page_bytes : (at + 1) * self._page_bytes]
        return page if len(page) == self._page_bytes else b""

    def _miss(self, match: Match, tokens: bytes, hit: int) -> Miss | None:
        """Why ``hit`` tokens and no more."""
        if hit == len(tokens) // TOKEN_BYTES - 1:
            return None
        page = self._page_tokens(tokens, len(match.nodes))
        if (match.node, page) in self._computing:
            return Miss(Reason.IN_FLIGHT, hit)
        return explain(self._index, match, page, hit, self._evicted)

    def _open_partial(self, seq: SeqKV, source: Node, rows: int) -> list[Copy]:
        """Give ``seq`` a page of its own for the first ``rows`` of ``source``."""
        if self.num_available - (source.page in self._index.idle) == 0:
            return []
        self._take([source.page])
        pages = self._alloc(1)
        assert pages is not None
        seq.source = source.page
        seq.extend(pages)
        seq.written += rows
        return [(source.page, pages[0], rows)]

    def _started(self, seq: SeqKV, ids: Tokens) -> SeqKV:
        self._sequences.add(seq)
        self._announce(seq, ids)
        return seq

    def _announce(self, seq: SeqKV, ids: Tokens) -> None:
        """Say which full page ``seq`` is computing, as far as ``ids`` tell."""
        start = seq.written // self.page_size * self.page_size
        known = seq.node is not None and start + self.page_size <= len(ids)
        tokens = token_bytes(ids[start : start + self.page_size]) if known else b""
        if seq.next_page is not None:
            self._computing[seq.next_page] -= 1
            if not self._computing[seq.next_page]:
                del self._computing[seq.next_page]
            seq.next_page = None
        if seq.node is not None and tokens:
            seq.next_page = seq.node, tokens
            self._computing[seq.next_page] += 1

    def _publish(self, seq: SeqKV, at: int, tokens: bytes) -> None:
        """Page ``at`` of ``seq`` is full of ``tokens``: make it findable, or give it back."""
        assert seq.node is not None
        page = int(seq.table[at])
        seq.node = self._insert(seq.node, tokens, page)
        if seq.node.page != page:
            self._take([seq.node.page])
            seq.table[at] = seq.node.page
            seq.version += 1
            self._drop([page])
            self.num_merged += 1

    def _keep_tail(self, seq: SeqKV, ids: Tokens) -> None:
        """Leave the unfilled page to the index, unless it has these rows already."""
        at, rows = divmod(seq.written, self.page_size)
        if seq.node is not None and rows:
            tokens = token_bytes(ids[seq.written - rows : seq.written])
            self._insert(seq.node, tokens, int(seq.table[at]))

    def _insert(self, parent: Node, tokens: bytes, page: int) -> Node:
        """Put ``page`` into the index, which then owns it too; the node that has the tokens."""
        node, covered = self._index.insert(parent, tokens, page)
        if node.page == page:
            self.pool.retain([page])
        if covered is not None:
            self.pool.release([covered.page])
        return node

    def _alloc(self, n: int) -> list[int] | None:
        """``n`` pages, evicting as needed; None, and nothing changed, if there are not so many."""
        missing = n - self.pool.num_free
        if missing > self.num_evictable:
            return None
        if missing > 0:
            self._evict(missing)
        return self.pool.alloc(n)

    def _evict(self, n: int) -> int:
        """Forget ``n`` pages that rest; returns ``n``."""
        evicted = self._index.evict(n)
        self.pool.release([page for _, page in evicted])
        for key, _ in evicted:
            self._evicted.add(key)
        self.num_evicted += n
        return n

    def _take(self, pages: list[int]) -> None:
        """Add an owner to each of ``pages``."""
        self.pool.retain(pages)
        for page in pages:
            self._index.idle.pop(page, None)

    def _drop(self, pages: Iterable[int]) -> None:
        """Remove an owner from each of ``pages``; those that only the index owns now rest."""
        pages = list(pages)
        self.pool.release(pages)
        for page in pages:
            if page in self._index.nodes and self.pool.count(page) == 1:
                self._index.idle[page] = None

    def _release_source(self, seq: SeqKV) -> None:
        if seq.source is not None:
            source, seq.source = seq.source, None
            self._drop([source])

    @staticmethod
    def _must_be_open(seq: SeqKV) -> None:
        if seq.closed:
            raise PageError("this sequence has been closed")
