"""An oracle of the cache by brute force: every resident prefix in one dictionary.

Shares no code with the cache. A page is an object; who holds it, owns it; what nobody reaches is
free. No tree, no hashing of tokens, no counts: questions are answered by looking at everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

PAGE = 4  # tokens

Tokens = tuple[int, ...]
Prefix = tuple[str | None, Tokens]
"""A salt, and all tokens up to the end of a page."""


@dataclasses.dataclass(eq=False)
class Page:
    """A page with an owner; ``number`` is its id in the pool."""

    number: int
    stamp: tuple[int, int] | None = None  # since when only the index owns it


@dataclasses.dataclass(eq=False)
class Run:
    """A running sequence."""

    salt: str | None
    ids: list[int]
    table: list[Page]
    written: int
    source: Page | None = None
    announced: int = 0  # tokens that were known when its current page was begun

    @property
    def full(self) -> int:
        """Tokens in full pages."""
        return self.written // PAGE * PAGE


def shared(one: Tokens, other: Tokens) -> int:
    """Tokens that both start with."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


class Oracle:
    """Everything resident, and every running sequence."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.resident: dict[Prefix, Page] = {}
        self.runs: list[Run] = []
        self.evicted: list[Prefix] = []  # the latest last
        self._clock = 0

    def used(self) -> set[Page]:
        """Pages of tables and sources of copies."""
        return {page for run in self.runs for page in (*run.table, *self._sources(run))}

    def live(self) -> set[Page]:
        """Pages that are not free."""
        return self.used() | set(self.resident.values())

    def num_free(self) -> int:
        return self.num_pages - len(self.live())

    def num_idle(self) -> int:
        return len(set(self.resident.values()) - self.used())

    def tick(self) -> None:
        """After each operation: stamp the pages that became idle, the last one first."""
        self._clock += 1
        used = self.used()
        for (_, tokens), page in self.resident.items():
            if page in used:
                page.stamp = None
            elif page.stamp is None:
                page.stamp = (self._clock, -len(tokens))

    def below(self, salt: str | None, start: Tokens) -> Iterator[tuple[Tokens, Page]]:
        """Pages that continue exactly the full pages of ``start``."""
        for (its_salt, tokens), page in self.resident.items():
            near = its_salt == salt and 0 < len(tokens) - len(start) <= PAGE
            if near and tokens[: len(start)] == start:
                yield tokens, page

    def hit(self, salt: str | None, ids: Tokens) -> int:
        """Tokens of ``ids`` that need not be computed."""
        starts = (shared(tokens, ids[:-1]) for its, tokens in self.resident if its == salt)
        return max(starts, default=0)

    def full_pages(self, salt: str | None, ids: Tokens) -> list[Page]:
        """The full pages of the hit, which are shared in place."""
        ends = range(PAGE, self.hit(salt, ids) + 1, PAGE)
        return [self.resident[salt, ids[:end]] for end in ends]

    def sources(self, salt: str | None, ids: Tokens) -> set[Page]:
        """Pages whose first rows make the hit exact; any of them will do."""
        hit = self.hit(salt, ids)
        if hit % PAGE == 0:
            return set()
        start = ids[: hit // PAGE * PAGE]
        return {page for tokens, page in self.below(salt, start) if shared(tokens, ids) >= hit}

    def computing(self, salt: str | None, ids: Tokens) -> bool:
        """Whether a running sequence writes the next full page of ``ids``."""
        at = self.hit(salt, ids) // PAGE * PAGE
        end = at + PAGE
        return len(ids) >= end and any(
            run.salt == salt
            and run.full == at
            and run.announced >= end
            and tuple(run.ids[:end]) == ids[:end]
            for run in self.runs
        )

    def reason(self, salt: str | None, ids: Tokens) -> str | None:
        """Why the hit is not longer."""
        hit = self.hit(salt, ids)
        end = hit // PAGE * PAGE + PAGE
        if hit == len(ids) - 1:
            return None
        if self.computing(salt, ids):
            return "in_flight"
        if len(ids) >= end and (salt, ids[:end]) in self.evicted:
            return "evicted"
        if end == PAGE and len(ids) >= PAGE and any(t == ids[:PAGE] for _, t in self.resident):
            return "namespace"
        if hit and self.parted(salt, ids):
            return "diverged"
        return "cold"

    def parted(self, salt: str | None, ids: Tokens) -> list[Tokens]:
        """Resident prefixes that share the whole hit and then go on with another token."""
        hit = self.hit(salt, ids)
        return [
            tokens
            for its, tokens in self.resident
            if its == salt and len(tokens) > hit and tokens[:hit] == ids[:hit]
        ]

    def leaves(self) -> dict[int, Prefix]:
        """The evictable pages by number: idle leaves."""
        used = self.used()
        return {
            page.number: prefix
            for prefix, page in self.resident.items()
            if page not in used and not any(self.below(prefix[0], prefix[1]))
        }

    def longest_unused(self) -> int:
        """The page that LRU evicts."""
        stamps = {number: self.resident[prefix].stamp for number, prefix in self.leaves().items()}
        return min(stamps, key=lambda number: stamps[number] or (self._clock + 1, 0))

    def evict(self, number: int) -> None:
        """Evict a page."""
        prefix = self.leaves()[number]
        del self.resident[prefix]
        self.evicted = [*self.evicted, prefix][-8 * self.num_pages :]

    def has_room(self, n: int) -> bool:
        """Whether ``n`` pages are free or evictable."""
        return n <= self.num_free() + self.num_idle()

    def publish(self, run: Run, end: int) -> None:
        """A page of ``run`` is full: resident, or the resident page takes its place."""
        prefix = run.salt, tuple(run.ids[:end])
        page = self.resident.setdefault(prefix, run.table[end // PAGE - 1])
        run.table[end // PAGE - 1] = page
        self._forget_covered(prefix)

    def keep_tail(self, run: Run) -> None:
        """The unfilled page of ``run`` stays if nothing has its tokens."""
        if run.written == run.full:
            return
        tokens = tuple(run.ids[: run.written])
        start = tuple(run.ids[: run.full])
        if (run.salt, tokens) in self.resident:
            self.resident[run.salt, tokens].stamp = None  # it was used
        if not any(t[: run.written] == tokens for t, _ in self.below(run.salt, start)):
            self.resident[run.salt, tokens] = run.table[run.full // PAGE]
            self._forget_covered((run.salt, tokens))

    def _forget_covered(self, prefix: Prefix) -> None:
        """Tails that hold nothing but the first rows of the page ``prefix``."""
        salt, tokens = prefix
        for end in range((len(tokens) - 1) // PAGE * PAGE + 1, len(tokens)):
            self.resident.pop((salt, tokens[:end]), None)

    @staticmethod
    def _sources(run: Run) -> list[Page]:
        return [] if run.source is None else [run.source]
