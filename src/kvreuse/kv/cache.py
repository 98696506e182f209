"""KVCache: the only place where pages change hands.

Who owns a page::

    free list --reserve--> a table --commit (full) or close (tail)--> the table and the index
        ^                     |                                                 |
        |<----- close --------+                                     close: the index alone
        |<----------------------------- evict ----------------------------------+

A page counts its owners: tables, sequences that will copy from it, pins, and the index.
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
"""(source page, destination page, tokens): the first rows of a page that another needs as well."""


_PAGES_A_SPARE = 256
_MOST_SPARE = 16
"""Pages that are evicted at once, where that is a small part of the pool: many are cheaper."""


class KVCache:
    """Verbs over a pool: lookup, open, fork, reserve, commit, close. Not thread-safe.

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
        eviction_policy: str = EVICTION_POLICIES[0],
        cost_growth: float = 0.0,
        digest: Hash = sha256,
    ) -> None:
        """``namespace`` is everything but tokens and salt that the bits of a page depend on.

        ``cost_growth`` is what each token before a token adds to the time of computing it, as a
        part of what a first token takes.
        """
        self.namespace = namespace
        self.enabled = enable_prefix_caching
        self.page_size = pool.layout.page_size
        self.pool = pool
        self.num_evicted = 0
        """Pages evicted so far."""
        self.num_merged = 0
        """Pages given back so far because another held the same tokens."""
        self._version = 0  # moves with every change that a look-up could see
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
        """Pages that are pinned, and moments at which pages are to go."""
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
        """Pages that :meth:`reserve` can give."""
        return self.pool.num_free + self._evictor.num_idle

    def lookup(self, ids: Tokens, salt: str | None = None, known: Hit | None = None) -> Hit:
        """What is resident of ``ids``, by its tokens. Changes nothing.

        ``known``, an earlier hit of the same prompt, is returned if it still holds.
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
        """A sequence that starts with what is resident of the prompt of ``hit``.

        Pages of ``hit`` that were evicted meanwhile are left out. Where prompts part inside a
        page, its shared rows belong into a page of the sequence's own: the copies returned must be
        done before anything is computed for it. Their source is kept until the first
        :meth:`commit`, or :meth:`close`. Without a page to be had for them those rows are not
        reused.
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
        """Another sequence with all that ``seq`` has written; None if there is no page for it.

        Full pages are shared; rows of an unfilled page are copied, as in :meth:`open`. ``seq``
        must have committed something, so that its own copies are done.
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
        self.pool.retain(pages[:full])  # ``seq`` has them, so they do not rest
        forked = SeqKV(self.page_size, seq.node, pages[:full], seq.root)
        if source is None:
            return self._started(forked, token_bytes(ids)), []
        self.pool.retain([source])
        forked.source = source
        forked.extend(owned)
        forked.written += rows
        return self._started(forked, token_bytes(ids)), [(source, owned[0], rows)]

    def reserve(self, seq: SeqKV, n: int) -> bool:
        """Room for ``n`` tokens after those written, evicting as needed; False: nothing changed."""
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
        """``n`` more tokens are written, and the copies of :meth:`open` are done.

        ``ids`` are all tokens known of the sequence, from its first on. Pages that became full
        can be found from now on; one whose tokens the index has already is given back, and the
        table names the index's page instead.
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
        """The one way out: finish, abort, preempt. The unfilled last page stays as a tail.

        Its pages are free, or evictable unless others use them too. ``retention`` says how long
        they should stay, ``num_prompt_tokens`` how many tokens a pin is about.
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
        """Forget every page that no sequence uses; how many those were."""
        return self._evict(self.num_evictable)

    def prefixes(self, limit: int) -> list[Prefix]:
        """The ``limit`` prefixes with most pages; only the pages that these share are looked at."""
        counts, hits = self.pool.counts_by_page, self._evictor.hits
        return census(self._index, counts, hits, self.promises.pinned, limit)

    def check(self) -> None:
        """Raise PageError unless the conservation law holds. Cost: everything is looked at."""
        index = self._index
        owners = [seq.pages for seq in self._sequences]
        owners += [[seq.source] for seq in self._sequences if seq.source is not None]
        indexed = [page for page in range(self.pool.num_pages) if page in index]
        self.pool.check([*owners, list(self.promises.pinned), indexed])
        index.check()
        if not self._evictor.check({page for page in indexed if self.pool.count(page) == 1}):
            raise PageError("a page rests and is used, or neither")
        for seq in self._sequences:
            seq.check(index)

    def _page_tokens(self, tokens: bytes, at: int) -> bytes:
        """The tokens of page ``at``; empty unless they fill it."""
        page = tokens[at * self._page_bytes : (at + 1) * self._page_bytes]
        return page if len(page) == self._page_bytes else b""

    def _miss(self, match: Match, salt: str | None, tokens: bytes, hit: int) -> Miss | None:
        """Why ``hit`` tokens and no more."""
        if hit == len(tokens) // TOKEN_BYTES - 1:
            return None
        page = self._page_tokens(tokens, len(match.nodes))
        if (match.node, page) in self._in_flight:
            return Miss(Reason.IN_FLIGHT, hit)
        return explain(self._index, match, salt, page, hit, self._evictor.ghosts)

    def _open_partial(self, seq: SeqKV, source: int, rows: int) -> list[Copy]:
        """Give ``seq`` a page of its own for the first ``rows`` of ``source``."""
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
        """Pages ``first`` to ``end`` of ``seq`` are full of ``tokens``."""
        at = first
        while at < end and (seq.node is None or seq.node < 0 or not self._index.is_leaf(seq.node)):
            self._publish(seq, at, self._page_tokens(tokens, at - first))
            at += 1
        if at < end and seq.node is not None:  # nobody has been here
            pages: list[int] = seq.table[at:end].tolist()
            self._index.append(seq.node, tokens[(at - first) * self._page_bytes :], pages)
            self.pool.retain(pages)
            self._evictor.born(pages)
            seq.node = pages[-1]

    def _publish(self, seq: SeqKV, at: int, tokens: bytes) -> None:
        """Page ``at`` of ``seq`` is full of ``tokens``: make it findable, or give it back."""
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
        """Leave the unfilled page to the index; the page there, if another has the same tokens."""
        at, rows = divmod(seq.written, self.page_size)
        if seq.node is not None and rows:
            tokens = token_bytes(ids[seq.written - rows : seq.written])
            page = self._insert(seq.node, tokens, int(seq.table[at]))
            if page != seq.table[at] and self._index.length(page) == rows:
                return np.array([page], dtype=np.int32)
        return np.empty(0, dtype=np.int32)

    def _insert(self, parent: int, tokens: bytes, page: int) -> int:
        """Put ``page`` into the index, which then owns it too; the node that has the tokens."""
        node, covered = self._index.insert(parent, tokens, page)
        if node == page:
            self.pool.retain([page])
            self._evictor.born([page])
        if covered >= 0:
            self._evictor.drop(covered)
            self.pool.release([covered])
        return node

    def _alloc(self, n: int) -> list[int] | None:
        """``n`` pages, evicting as needed; None, and nothing changed, if there are not so many."""
        missing = n - self.pool.num_free
        if missing > self.num_evictable:
            return None
        if missing > 0:
            spare = min(self.pool.num_pages // _PAGES_A_SPARE, _MOST_SPARE)
            self._evict(min(max(missing, spare), self.num_evictable))
        return self.pool.alloc(n)

    def _evict(self, n: int) -> int:
        """Forget ``n`` pages that rest; returns ``n``."""
        if n:
            self._version += 1
            self.pool.release(self._evictor.evict(n, self.pool.counts_by_page))
            self.num_evicted += n
        return n

    def _take(self, pages: Sequence[int]) -> None:
        """Add an owner to each of ``pages``, a path of the index or a part of one."""
        self._version += 1
        if pages:
            self._evictor.wake(self.pool.num_lone(pages), pages[-1])
            self.pool.retain(pages)

    def _drop(self, pages: Pages) -> None:
        """Remove an owner from each of ``pages``; those that only the index owns now rest.

        Those that the index has are a path, or a part of one.
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
