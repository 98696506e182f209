"""KVCache: the only place where the owners of pages change.

The owners of a page::

    free list --reserve--> a table --commit (full) or close (tail)--> the table and the index
        ^                     |                                                 |
        |<----- close --------+                                     close: the index alone
        |<----------------------------- evict ----------------------------------+

The reference count of a page is the number of its owners: page tables, sequences that will copy
from it, pins, and the index.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.api.miss import Miss, Reason
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.config import EVICTION_POLICIES
from kvreuse.kv.census import Prefix, census
from kvreuse.kv.evict.evictor import HIGHEST, UNRANKED, Evictor
from kvreuse.kv.hit import Hit, explain
from kvreuse.kv.inflight import InFlight
from kvreuse.kv.keys import TOKEN_BYTES, Hash, Tokens, sha256, token_bytes
from kvreuse.kv.pool import PageError, PagePool
from kvreuse.kv.prefix import Match, PrefixIndex
from kvreuse.kv.promises import Promises
from kvreuse.kv.sequence import SeqKV

Pages = npt.NDArray[np.int32]
Copy = tuple[int, int, int]
"""(source page, destination page, tokens): copy the first ``tokens`` rows of a page."""


_PAGES_A_SPARE = 256
_MOST_SPARE = 16
"""Pages evicted together, at most a 256th of the pool: one call for many pages is cheaper."""


class KVCache:
    """Verbs over a pool: lookup, open, fork, reserve, commit, close. Not thread-safe.

    The conservation law (:meth:`check`) holds after every method, also one that raised: every page
    is either free or owned, its count is the number of its owners, every full page of the index has
    been written in full, and no two pages of the index hold the same tokens.
    """

    def __init__(
        self,
        pool: PagePool,
        namespace: bytes,
        *,
        enable_prefix_caching: bool = True,
        eviction_policy: str = EVICTION_POLICIES[0],
        cost_growth: float = 0.0,
        digest: Hash = sha256,
    ) -> None:
        """``namespace`` identifies everything but tokens and salt that a page's bits depend on.

        ``cost_growth`` is the time that each earlier token adds to computing a token, as a share of
        the time of a first token.
        """
        self.namespace = namespace
        self.enabled = enable_prefix_caching
        self.page_size = pool.layout.page_size
        self.pool = pool
        self.num_evicted = 0
        """Pages evicted so far."""
        self.num_merged = 0
        """Pages given back so far because another page held the same tokens."""
        self._version = 0  # changes with everything that may change a look-up
        self._page_bytes = self.page_size * TOKEN_BYTES
        self._index = PrefixIndex(namespace, pool.num_pages, self.page_size, digest)
        self._evictor = Evictor(
            self._index,
            pool.num_pages,
            self.page_size,
            eviction_policy,
            cost_growth * self.page_size,
        )
        self.promises = Promises(pool, self._index, self._evictor, self._drop)
        """Pinned pages, and sessions that end at some time."""
        self._sequences: set[SeqKV] = set()
        self._in_flight = InFlight()

    @property
    def num_evictable(self) -> int:
        """Pages that only the index owns."""
        return self._evictor.num_idle

    @property
    def num_pinned(self) -> int:
        """Pages that are pinned."""
        return len(self.promises.pinned)

    @property
    def num_available(self) -> int:
        """Free and evictable pages: those that :meth:`reserve` can use."""
        return self.pool.num_free + self._evictor.num_idle

    def lookup(self, ids: Tokens, salt: str | None = None, known: Hit | None = None) -> Hit:
        """Find the longest resident prefix of ``ids``. Changes nothing.

        ``known``, an earlier hit of the same prompt, is returned if it is still valid.
        """
        if known is not None and known.version == self._version:
            return known
        tokens = token_bytes(ids)
        total = self.pool.layout.pages_for(len(ids))
        if not self.enabled:
            disabled = Miss(Reason.DISABLED, 0)
            return Hit(0, total, disabled, tokens, salt, Match(None, (), None), self._version)
        # The last token has to be computed for its logits.
        match = self._index.match(salt, tokens[:-TOKEN_BYTES])
        found, pages = len(match.nodes) * self.page_size, list(match.nodes)
        if match.partial is not None:
            source, rows = match.partial
            found += rows
            pages.append(source)
        taken = total - len(match.nodes) + self.pool.num_lone(pages)
        miss = self._miss(match, salt, tokens, found)
        return Hit(found, taken, miss, tokens, salt, match, self._version)

    def open(self, hit: Hit) -> tuple[SeqKV, list[Copy]]:
        """Start a sequence with the resident prefix of the prompt of ``hit``.

        Pages of ``hit`` that were evicted meanwhile are left out. Rows of a page that the prompt
        shares only in part are copied to a new page (copy-on-write): the copies returned must be
        done before the sequence is computed. Their source is kept until the first :meth:`commit`,
        or :meth:`close`. If no page is free or evictable, these rows are not reused.
        """
        if not self.enabled:
            return self._started(SeqKV(self.page_size, None, []), hit.prompt), []
        match = hit.match
        if hit.version != self._version:
            match = self._index.still(match, hit.prompt[:-TOKEN_BYTES])
        root = match.root if match.root is not None else self._index.root(hit.salt)
        pages = list(match.nodes)
        self._take(pages)
        self._evictor.used_again(pages, UNRANKED)
        seq = SeqKV(self.page_size, pages[-1] if pages else root.node, pages, root)
        copies: list[Copy] = []
        if match.partial is not None:
            copies = self._open_partial(seq, *match.partial)
        return self._started(seq, hit.prompt), copies

    def fork(self, seq: SeqKV, ids: Tokens) -> tuple[SeqKV, list[Copy]] | None:
        """Start a sequence with everything that ``seq`` has written; None if no page is left.

        Full pages are shared; rows of an unfilled page are copied, as in :meth:`open`. ``seq`` must
        have committed at least once, so that its own copies are done; else PageError.
        """
        seq.check_open()
        if seq.source is not None:
            raise PageError("a sequence was forked before its own copies were done")
        full, rows = divmod(seq.written, self.page_size)
        pages = seq.pages
        source = pages[full] if rows else None
        owned = self._alloc(1) if rows else []
        if owned is None:
            return None
        self.pool.retain(pages[:full])  # ``seq`` owns them, so they are not idle
        forked = SeqKV(self.page_size, seq.node, pages[:full], seq.root)
        if source is None:
            return self._started(forked, token_bytes(ids)), []
        self.pool.retain([source])
        forked.source = source
        forked.extend(owned)
        forked.written += rows
        return self._started(forked, token_bytes(ids)), [(source, owned[0], rows)]

    def reserve(self, seq: SeqKV, n: int) -> bool:
        """Get pages for ``n`` more tokens, evicting as needed; False, nothing changed, if none."""
        seq.check_open()
        missing = self.pool.layout.pages_for(seq.written + n) - seq.num_pages
        if missing <= 0:
            return True
        pages = self._alloc(missing)
        if pages is None:
            return False
        seq.extend(pages)
        return True

    def commit(self, seq: SeqKV, ids: Tokens, n: int) -> None:
        """Record that ``n`` more tokens are written, and that the copies of :meth:`open` are done.

        ``ids`` are all known tokens of the sequence, from its first on. Pages that became full are
        put into the index. If the index already has a page with these tokens, the table refers to
        that page instead, and the other is given back.
        """
        seq.check_open()
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
            self._version += 1
            self._publish_all(seq, first, end, filled)
            start = end * self.page_size
            self._in_flight.announce(seq, token_bytes(ids[start : start + self.page_size]), start)

    def close(
        self,
        seq: SeqKV,
        ids: Tokens,
        retention: Retention = DEFAULT_RETENTION,
        num_prompt_tokens: int = 0,
    ) -> None:
        """End a sequence: finished, aborted or preempted. Its unfilled page stays as a tail.

        Its pages become evictable, or free, unless others own them too. ``retention`` says how long
        they should stay; a pin covers the first ``num_prompt_tokens`` tokens.
        """
        seq.check_open()
        kept = self.enabled and seq.source is None
        tail = self._keep_tail(seq, ids) if kept else seq.table[:0]
        seq.closed = True
        self._sequences.remove(seq)
        self._in_flight.announce(seq, b"")
        self._release_source(seq)
        table = seq.table[: seq.num_pages]
        path = self._index.of(np.append(table, tail)) if self.enabled else table[:0]
        self._evictor.used(path, min(max(-retention.priority, -HIGHEST), HIGHEST))
        last = int(path[-1]) if len(path) and retention != DEFAULT_RETENTION else None
        if last is not None:
            num_pinned = min(num_prompt_tokens, seq.written) // self.page_size
            self.promises.make(path.tolist(), retention, num_pinned, time.monotonic())
        self._drop(table)
        if last is not None and retention.session_end:
            self.promises.end(last)
        seq.num_pages = seq.written = 0
        seq.node = seq.root = None

    def clear(self) -> int:
        """Evict every page that only the index owns; returns how many there were."""
        return self._evict(self.num_evictable)

    def prefixes(self, limit: int) -> list[Prefix]:
        """The ``limit`` prefixes with most pages, largest first, at a cost that has a bound."""
        counts, hits = self.pool.counts_by_page, self._evictor.hits
        return census(self._index, counts, hits, self.promises.pinned, limit)

    def check(self) -> None:
        """Raise PageError unless the conservation law holds. Visits all pages and sequences."""
        index = self._index
        owners = [seq.pages for seq in self._sequences]
        owners += [[seq.source] for seq in self._sequences if seq.source is not None]
        indexed = [page for page in range(self.pool.num_pages) if page in index]
        self.pool.check([*owners, list(self.promises.pinned), indexed])
        index.check()
        if not self._evictor.check({page for page in indexed if self.pool.count(page) == 1}):
            raise PageError("the idle pages are not those that only the index owns")
        for seq in self._sequences:
            seq.check(index)

    def _page_tokens(self, tokens: bytes, at: int) -> bytes:
        """The tokens of the page number ``at``; empty unless they fill it."""
        page = tokens[at * self._page_bytes : (at + 1) * self._page_bytes]
        return page if len(page) == self._page_bytes else b""

    def _miss(self, match: Match, salt: str | None, tokens: bytes, hit: int) -> Miss | None:
        """Why only ``hit`` tokens are reused; None if no more could be."""
        if hit == len(tokens) // TOKEN_BYTES - 1:
            return None
        page = self._page_tokens(tokens, len(match.nodes))
        if (match.node, page) in self._in_flight:
            return Miss(Reason.IN_FLIGHT, hit)
        return explain(self._index, match, salt, page, hit, self._evictor.ghosts)

    def _open_partial(self, seq: SeqKV, source: int, rows: int) -> list[Copy]:
        """Give ``seq`` a new page for the first ``rows`` of ``source``, if one can be had."""
        if self.num_available - self.pool.num_lone([source]) == 0:
            return []
        self._take([source])
        self._evictor.used_again([source], 0)
        pages = self._alloc(1)
        assert pages is not None
        seq.source = source
        seq.extend(pages)
        seq.written += rows
        return [(source, pages[0], rows)]

    def _started(self, seq: SeqKV, tokens: bytes) -> SeqKV:
        self._version += 1
        self._sequences.add(seq)
        self._in_flight.announce(seq, tokens)
        return seq

    def _publish_all(self, seq: SeqKV, first: int, end: int, tokens: bytes) -> None:
        """Put pages ``first`` to ``end`` of ``seq``, which hold ``tokens``, into the index."""
        at = first
        while at < end and (seq.node is None or seq.node < 0 or not self._index.is_leaf(seq.node)):
            self._publish(seq, at, self._page_tokens(tokens, at - first))
            at += 1
        if at < end and seq.node is not None:  # at a leaf: all further pages are new
            pages: list[int] = seq.table[at:end].tolist()
            self._index.append(seq.node, tokens[(at - first) * self._page_bytes :], pages)
            self.pool.retain(pages)
            self._evictor.born(pages)
            seq.node = pages[-1]

    def _publish(self, seq: SeqKV, at: int, tokens: bytes) -> None:
        """Put page ``at`` of ``seq`` into the index, or use the index's page of the same tokens."""
        assert seq.node is not None
        page = int(seq.table[at])
        seq.node = self._insert(seq.node, tokens, page)
        if seq.node != page:
            self._take([seq.node])
            seq.table[at] = seq.node
            seq.version += 1
            self.pool.release([page])
            self.num_merged += 1

    def _keep_tail(self, seq: SeqKV, ids: Tokens) -> Pages:
        """Put the unfilled page into the index; returns another page there with the same tokens."""
        at, rows = divmod(seq.written, self.page_size)
        if seq.node is not None and rows:
            tokens = token_bytes(ids[seq.written - rows : seq.written])
            page = self._insert(seq.node, tokens, int(seq.table[at]))
            if page != seq.table[at] and self._index.length(page) == rows:
                return np.array([page], dtype=np.int32)
        return np.empty(0, dtype=np.int32)

    def _insert(self, parent: int, tokens: bytes, page: int) -> int:
        """Put ``page`` into the index, which becomes an owner; returns the node for ``tokens``."""
        node, covered = self._index.insert(parent, tokens, page)
        if node == page:
            self.pool.retain([page])
            self._evictor.born([page])
        if covered >= 0:
            self._evictor.drop(covered)
            self.pool.release([covered])
        return node

    def _alloc(self, n: int) -> list[int] | None:
        """Allocate ``n`` pages, evicting as needed; None, nothing changed, if there are too few."""
        missing = n - self.pool.num_free
        if missing > self.num_evictable:
            return None
        if missing > 0:
            spare = min(self.pool.num_pages // _PAGES_A_SPARE, _MOST_SPARE)
            self._evict(min(max(missing, spare), self.num_evictable))
        return self.pool.alloc(n)

    def _evict(self, n: int) -> int:
        """Evict ``n`` idle pages; returns ``n``."""
        if n:
            self._version += 1
            self.pool.release(self._evictor.evict(n, self.pool.counts_by_page))
            self.num_evicted += n
        return n

    def _take(self, pages: Sequence[int]) -> None:
        """Add an owner to each of ``pages``, successive pages on a path of the index."""
        self._version += 1
        if pages:
            self._evictor.wake(self.pool.num_lone(pages), pages[-1])
            self.pool.retain(pages)

    def _drop(self, pages: Pages) -> None:
        """Remove an owner from each of ``pages``; those that only the index owns become idle.

        Those that are in the index are successive pages on a path.
        """
        self._version += 1
        self.pool.release(pages.tolist())
        if self.enabled:
            known = self._index.of(pages)
            resting = known[self.pool.counts[known] == 1]
            if len(resting):
                self._evictor.rest(len(resting), int(resting[-1]))

    def _release_source(self, seq: SeqKV) -> None:
        if seq.source is not None:
            source, seq.source = seq.source, None
            self._drop(np.array([source], dtype=np.int32))
            if source in self._index:
                self._evictor.tick(source)
