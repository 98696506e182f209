"""What is asked of every engine, and the figures it gives. Standard library only."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from peers.adapter import Adapter, Answer, Setup

Figures = dict[str, float]
Progress = Callable[[], None]
TIMED_STEPS = 8
CHECK_STEPS = 9


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Tokens of the prompts and answers, and requests at once."""

    warm_up: int = 600
    short: int = 64
    prefill: int = 512
    long: int = 1900
    kept: int = 1880
    """Of the long prompt, where its other ending begins: not at the end of a page."""
    shared: int = 1024
    own: int = 32
    distinct: int = 256
    requests: int = 32
    out: int = 64
    checked: int = 8
    """Requests at once where answers are compared, and no time is taken."""
    alone: int = 4
    """Of these, the ones that are also answered alone."""

    @property
    def capacity(self) -> int:
        """Tokens that a cache must hold at once, with whole pages of 32 for each sequence."""
        one = self.shared + self.long + self.out + self.warm_up + 64
        shared = self.shared + self.requests * (self.own + self.out + 32)
        return max(one, shared, self.requests * (self.distinct + self.out + 32))

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.long, self.shared + self.own, self.distinct, self.warm_up) + self.out


TINY = Sizes(40, 16, 64, 200, 185, 64, 16, 48, 4, 8, 3, 2)
"""To see whether everything works; figures of these mean nothing."""


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The ids of every prompt; none but those meant to share a beginning do."""

    warm_up: list[int]
    short: list[int]
    prefill: list[int]
    long: list[int]
    other_end: list[int]
    shared: list[list[int]]
    distinct: list[list[int]]

    @classmethod
    def cut(cls, ids: Sequence[int], sizes: Sizes) -> Prompts:
        """From the ids of a long text, piece after piece. ValueError if it is too short."""
        place = 0

        def take(count: int) -> list[int]:
            nonlocal place
            place += count
            if place > len(ids):
                raise ValueError(f"the text has {len(ids):,} tokens: too few")
            return list(ids[place - count : place])

        long, head = take(sizes.long), take(sizes.shared)
        return cls(
            warm_up=take(sizes.warm_up),
            short=take(sizes.short),
            prefill=take(sizes.prefill),
            long=long,
            other_end=long[: sizes.kept] + take(sizes.long - sizes.kept),
            shared=[head + take(sizes.own) for _ in range(sizes.requests)],
            distinct=[take(sizes.distinct) for _ in range(sizes.requests)],
        )


def measure(engine: Adapter, prompts: Prompts, sizes: Sizes, done: Progress) -> Figures:
    """Figures of one process: tokens a second, and milliseconds to the first token."""
    figures: Figures = {}

    def one(prompt: list[int], tokens: int) -> Answer:
        (answer,) = engine.answer([prompt], tokens)
        done()
        return answer

    engine.prepare(1, sizes.max_len, 0)
    one(prompts.warm_up, 4)
    figures["decode"] = _decode_rate(one(prompts.short, sizes.out))
    figures["prefill"] = sizes.prefill / one(prompts.prefill, 1).first
    cold = one(prompts.long, sizes.out)
    figures["prefill_long"] = sizes.long / cold.first
    figures["decode_long"] = _decode_rate(cold)
    figures["cold_ms"] = cold.first * 1e3
    figures["again_ms"] = one(prompts.long, sizes.out).first * 1e3
    figures["other_end_ms"] = one(prompts.other_end, sizes.out).first * 1e3
    for name in ("shared", "distinct"):
        answers = batch(engine, prompts, sizes, name, sizes.requests)
        seconds = max(answer.last for answer in answers)
        figures[name] = sum(len(answer.ids) for answer in answers) / seconds
        figures[f"{name}_first_ms"] = statistics.mean(answer.first for answer in answers) * 1e3
        done()
    return figures


def batch(engine: Adapter, prompts: Prompts, sizes: Sizes, name: str, count: int) -> list[Answer]:
    """``count`` requests that share a beginning, or ``count`` that do not, at once."""
    asked: list[list[int]] = getattr(prompts, name)[:count]
    engine.prepare(len(asked), len(asked[0]) + sizes.out, sizes.shared if name == "shared" else 0)
    return engine.answer(asked, sizes.out)


def answers_with_reuse(
    engine: Adapter, prompts: Prompts, sizes: Sizes, done: Progress
) -> dict[str, list[Answer]]:
    """The answers to compare, as they are served: from the cache where it has them, in batches."""
    found: dict[str, list[Answer]] = {}
    engine.prepare(1, sizes.max_len, 0)
    engine.answer([prompts.long], sizes.out)
    done()
    found["again"] = engine.answer([prompts.long], sizes.out)
    done()
    found["other_end"] = engine.answer([prompts.other_end], sizes.out)
    done()
    for name in ("shared", "distinct"):
        found[name] = batch(engine, prompts, sizes, name, sizes.checked)[: sizes.alone]
        done()
    return found


def answers_alone(
    engine: Adapter, prompts: Prompts, sizes: Sizes, done: Progress
) -> dict[str, list[Answer]]:
    """The same, each request alone, by an engine that reuses nothing."""
    engine.prepare(1, sizes.max_len, 0)
    asked = {
        "again": [prompts.long],
        "other_end": [prompts.other_end],
        "shared": prompts.shared[: sizes.alone],
        "distinct": prompts.distinct[: sizes.alone],
    }
    found: dict[str, list[Answer]] = {}
    for name, every in asked.items():
        found[name] = [engine.answer([prompt], sizes.out)[0] for prompt in every]
        done()
    return found


def compare(served: list[Answer], alone: list[Answer]) -> dict[str, int]:
    """How many answers there are, how many have the same ids, how many the same scores too."""
    pairs = list(zip(served, alone, strict=True))
    same = [(a.ids == b.ids, a.ids == b.ids and a.scores == b.scores) for a, b in pairs]
    return {
        "answers": len(pairs),
        "same_ids": sum(ids for ids, _ in same),
        "same_scores": sum(scores for _, scores in same),
    }


def setup_for(model: str, threads: int, sizes: Sizes) -> Setup:
    """What an engine must be able to hold."""
    return Setup(model, threads, sizes.capacity, sizes.max_len, sizes.requests)


def _decode_rate(answer: Answer) -> float:
    return (len(answer.ids) - 1) / (answer.last - answer.first)
