"""A log of requests: what they reuse, what they lose and to what, and what mending would give."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kvreuse.errors import RequestError
from kvreuse.study.why.asked import Asked, read_log
from kvreuse.study.why.compare import Difference, part_of, shown
from kvreuse.study.why.culprits import Cause, Culprit, culprit, kept_messages
from kvreuse.study.why.mend import REWRITTEN, Findings, place_of
from kvreuse.study.why.rendered import Ids, Rendered, Texts
from kvreuse.study.why.replay import Found, known_until, replayed
from kvreuse.text.offsets import shared_start
from kvreuse.text.parts import Part

Progress = Callable[[int, int], None]
"""Called with the steps done, and how many there are as far as is known."""

_REMEMBERED = 64  # texts of requests, with their parts


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One request of the log."""

    name: str
    tokens: int
    cached: int
    """Tokens that are reused."""
    lost: int
    """Tokens that would be reused as well if all causes were mended."""
    culprit: Culprit | None
    part: str | None
    """The part of the chat that it parts in from ``like``."""
    like: str | None
    """The earlier request that it shares most with."""
    difference: Difference | None
    """How they part; only where something is lost."""


@dataclasses.dataclass(frozen=True, slots=True)
class CauseReport:
    """What one cause does to a log."""

    cause: Cause | None
    """None: no cause is recognised, although mending the others brings these tokens back."""
    lines: int
    lost: int
    mended_hit_rate: float | None
    """The hit rate if this cause alone were mended."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogReport:
    """What all requests of a log reuse and lose. Hit rates are shares of the prompts' tokens."""

    page_size: int
    lines: tuple[Line, ...]
    causes: tuple[CauseReport, ...]
    """Those that cost most first."""
    mended_hit_rate: float
    """The hit rate if all causes were mended."""

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(line.tokens for line in self.lines)

    @property
    def cached(self) -> int:
        """Those that are reused."""
        return sum(line.cached for line in self.lines)

    @property
    def lost(self) -> int:
        """Those that would be reused as well if all causes were mended."""
        return sum(line.lost for line in self.lines)

    @property
    def hit_rate(self) -> float:
        """The share of tokens that are reused."""
        return self.cached / self.tokens if self.tokens else 0.0

    def worst(self, count: int) -> list[Line]:
        """The lines that lose most."""
        losers = [line for line in self.lines if line.lost]
        return sorted(losers, key=lambda line: -line.lost)[:count]


def replay_file(
    model: str | os.PathLike[str],
    path: Path,
    page_size: int = 32,
    progress: Progress | None = None,
) -> LogReport:
    """What the requests of a log reuse, lose and could have, on this model.

    RequestError, naming the line, for one that holds no request, or one that the model refuses;
    ModelFileError; OSError.
    """
    requests = read_log(path)
    if not requests:
        raise RequestError(f"{path}: there is no request in it")
    return report(requests, Texts.of_model(model), page_size, progress)


def report(
    requests: Sequence[Asked], texts: Texts, page_size: int, progress: Progress | None = None
) -> LogReport:
    """Replay ``requests`` in order, then again with what breaks their prefixes mended.

    RequestError, naming the request, for one that cannot be rendered.
    """
    return _Analysis(requests, texts, page_size, progress).report()


class _Pass:
    """The requests in one wording: their tokens, and their texts when asked for again."""

    def __init__(self, requests: Sequence[Asked], texts: Texts) -> None:
        self.requests = requests
        self.ids: list[Ids] = []
        self.rendered = functools.lru_cache(_REMEMBERED)(
            lambda place: texts.rendered(requests[place], self.ids[place])
        )
        self._texts = texts

    def add(self, ids: Ids | None) -> None:
        """The tokens of the next request, where they are known already."""
        if ids is None:
            ids = self._texts.rendered(self.requests[len(self.ids)]).ids
        self.ids.append(ids)


class _Analysis:
    def __init__(
        self,
        requests: Sequence[Asked],
        texts: Texts,
        page_size: int,
        progress: Progress | None,
    ) -> None:
        self._texts, self._page_size, self._progress = texts, page_size, progress
        self._done, self._total = 0, 3 * len(requests)
        self._plain = _Pass(requests, texts)
        for _ in requests:
            self._plain.add(None)
            self._tick()
        self._found = self._replay(self._plain)
        self._likes: list[int | None] = []  # the earlier line that each is compared with
        self._culprits: list[Culprit | None] = []
        self._floors: list[
            int
        ] = []  # tokens a line would reuse if its template or history were mended
        self._findings = Findings()
        for place in range(len(requests)):
            self._explain(place)
            self._tick()

    def report(self) -> LogReport:
        """Mend, and sum up."""
        causes = [cause for cause in REWRITTEN if cause in self._findings.places]
        several = len(causes) > 1
        self._total += 2 * len(self._found) * (len(causes) + several)
        alone = {cause: self._mended([cause]) for cause in causes}
        everything = self._mended(causes) if several or not causes else alone[causes[0]]
        cached = [found.tokens for found in self._found]
        hits = [
            max(hit, min(floor, size - 1))
            for (hit, size), floor in zip(everything, self._floors, strict=True)
        ]
        lost = [
            min(max(hit - has, 0), len(ids) - 1 - has)
            for hit, has, ids in zip(hits, cached, self._plain.ids, strict=True)
        ]
        sizes = [size for _, size in everything]
        return LogReport(
            page_size=self._page_size,
            lines=tuple(self._line(place, tokens) for place, tokens in enumerate(lost)),
            causes=tuple(self._causes(lost, alone)),
            mended_hit_rate=_rate(zip(hits, sizes, strict=True)),
        )

    def _tick(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    def _replay(self, wording: _Pass) -> list[Found]:
        return replayed(
            wording.requests, wording.ids, wording.rendered, self._page_size, self._tick
        )

    def _explain(self, place: int) -> None:
        """Find out why a line reused no more, and what mending template or history would give."""
        found, floor, reason = self._found[place], 0, None
        like = found.like if found.extends is None else found.extends
        if found.tokens < len(self._plain.ids[place]) - 1:
            for earlier in dict.fromkeys((like, found.follows)):
                if earlier is not None and reason is None:
                    like = earlier
                    reason = culprit(*self._pair(place, earlier))
        if like is not None and reason is not None:
            part = self._part(place, like)
            self._findings.take(reason, place_of(part.kind, part.role))
            floor = _floor(reason.cause, *self._pair(place, like))
        self._likes.append(like)
        self._culprits.append(reason)
        self._floors.append(floor)

    def _pair(self, place: int, like: int) -> tuple[Rendered, Rendered]:
        return self._plain.rendered(like), self._plain.rendered(place)

    def _part(self, place: int, like: int) -> Part:
        one, other = self._pair(place, like)
        return part_of(one, other, shared_start(one.text, other.text))

    def _mended(self, causes: Sequence[Cause]) -> list[tuple[int, int]]:
        """(tokens reused, tokens) of every line if these causes were mended."""
        plain = self._plain
        requests = [self._findings.mended(asked, causes) for asked in plain.requests]
        if all(new is old for new, old in zip(requests, plain.requests, strict=True)):
            found = self._found
            return [(f.tokens, len(ids)) for f, ids in zip(found, plain.ids, strict=True)]
        wording = _Pass(requests, self._texts)
        for asked, old, ids in zip(requests, plain.requests, plain.ids, strict=True):
            wording.add(ids if asked is old else None)
            self._tick()
        found = self._replay(wording)
        return [(f.tokens, len(ids)) for f, ids in zip(found, wording.ids, strict=True)]

    def _causes(
        self, lost: Sequence[int], alone: dict[Cause, list[tuple[int, int]]]
    ) -> list[CauseReport]:
        sums: dict[Cause | None, list[int]] = {}
        for reason, tokens in zip(self._culprits, lost, strict=True):
            if tokens:
                sums.setdefault(reason.cause if reason is not None else None, []).append(tokens)
        reports = []
        for cause, every in sums.items():
            rate = None
            if cause is not None:
                rate = _rate(alone[cause]) if cause in alone else self._rate_with_floors(cause)
            reports.append(CauseReport(cause, len(every), sum(every), rate))
        return sorted(reports, key=lambda one: -one.lost)

    def _rate_with_floors(self, cause: Cause) -> float | None:
        """The hit rate if the template, or the way histories are cut, were mended."""
        if cause not in (Cause.TEMPLATE, Cause.HISTORY):
            return None
        hits = [
            max(floor, found.tokens) if reason and reason.cause is cause else found.tokens
            for reason, floor, found in zip(self._culprits, self._floors, self._found, strict=True)
        ]
        return _rate(zip(hits, map(len, self._plain.ids), strict=True))

    def _line(self, place: int, lost: int) -> Line:
        found, reason, like = self._found[place], self._culprits[place], self._likes[place]
        gap, part = None, None
        if like is not None and lost:
            one, other = self._pair(place, like)
            gap = shown(one, other, reason)
            part = str(self._part(place, like)) if other.asked.messages is not None else None
        return Line(
            name=self._plain.requests[place].name,
            tokens=len(self._plain.ids[place]),
            cached=found.tokens,
            lost=lost,
            culprit=reason,
            part=part,
            like=None if like is None else self._plain.requests[like].name,
            difference=gap,
        )


def _floor(cause: Cause, one: Rendered, other: Rendered) -> int:
    """Tokens that ``other`` would reuse without this cause, which no rewriting mends."""
    count = 0
    if cause is Cause.TEMPLATE:
        count = len(one.asked.messages or ())
    elif cause is Cause.HISTORY:
        count = kept_messages(one, other) or 0
    return known_until(other.asked, other, count) if count else 0


def _rate(every: Iterable[tuple[int, int]]) -> float:
    hits, tokens = 0, 0
    for hit, size in every:
        hits, tokens = hits + hit, tokens + size
    return hits / tokens if tokens else 0.0
