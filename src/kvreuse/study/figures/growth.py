"""``growth``: generating with the cache, and without it, where every step computes all rows."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta
from kvreuse.llm import LLM
from kvreuse.sizes import format_size
from kvreuse.study.figures.record import Caption, Captions, Options, Record, machine_facts
from kvreuse.study.figures.running import (
    engine,
    greedy,
    held_pages,
    medians,
    random_tokens,
    repeated,
)
from kvreuse.study.figures.words import duration, factor, medians_of, medians_of_zh

TOKENS = 256
DOUBLINGS = 4
"""With the cache, single steps are measured up to this many doublings of the length as well."""
STEPS = 24
"""Steps whose median is the time of one at a length."""


@dataclasses.dataclass(slots=True)
class Run:
    """One generation, both ways: seconds and rows of each step, bytes held after each."""

    with_seconds: list[float] = dataclasses.field(default_factory=list)
    without_seconds: list[float] = dataclasses.field(default_factory=list)
    with_rows: list[int] = dataclasses.field(default_factory=list)
    without_rows: list[int] = dataclasses.field(default_factory=list)
    held: list[int] = dataclasses.field(default_factory=list)
    same: bool = True


def measure(options: Options) -> Record:
    """Generate ``tokens`` tokens, every step both ways; then single steps at greater lengths."""
    tokens = options.tokens or TOKENS
    longest = tokens << DOUBLINGS
    with (
        engine(options, longest + STEPS + 1) as cached,
        engine(options, tokens + 1, enable_prefix_caching=False) as plain,
    ):
        done, rows = 0, options.repeats * tokens * (tokens + 1) // 2

        def run() -> Run:
            nonlocal done
            found = Run()
            text = cached.tokenizer.encode("Once")[:1]
            request = cached.engine.submit(Ask(text, greedy(tokens + 1))).request_id
            for _ in range(tokens):
                text.append(_step_both_ways(cached, plain, text, found))
                done += len(text) - 1
                options.say(done, rows)
            cached.engine.abort(request)
            return found

        runs = repeated(run, options)
        long = _long_steps(cached, [tokens << power for power in range(DOUBLINGS + 1)])
        token_bytes = cached.pool.layout.bytes_per_token
    first = runs[0]
    data = {
        "tokens": list(range(1, tokens + 1)),
        "with_rows": first.with_rows,
        "without_rows": first.without_rows,
        "with_seconds": medians([run.with_seconds for run in runs]),
        "without_seconds": medians([run.without_seconds for run in runs]),
        "held_bytes": first.held,
        "long": long,
    }
    seconds = {
        way: statistics.median(sum(getattr(run, f"{way}_seconds")) for run in runs)
        for way in ("with", "without")
    }
    summary = {
        "with_rows": sum(first.with_rows),
        "without_rows": sum(first.without_rows),
        "with_seconds": seconds["with"],
        "without_seconds": seconds["without"],
        "rows_factor": sum(first.without_rows) / sum(first.with_rows),
        "seconds_factor": seconds["without"] / seconds["with"],
        "same_tokens": all(run.same for run in runs),
        "bytes_per_token": token_bytes,
        "long_factor": long["seconds"][-1] / long["seconds"][0],
    }
    settings = {"tokens": tokens, "repeats": len(runs), "steps": STEPS}
    return Record(
        "growth", options.model_name, machine_facts(options.threads), settings, data, summary
    )


def _step_both_ways(cached: LLM, plain: LLM, text: list[int], run: Run) -> int:
    """The token after ``text``: of the request that runs in ``cached``, and of all rows again."""
    rows, start = cached.engine.counters.computed_tokens, time.perf_counter()
    [delta] = cached.engine.step()
    run.with_seconds.append(time.perf_counter() - start)
    run.with_rows.append(cached.engine.counters.computed_tokens - rows)
    run.held.append(held_pages(cached) * cached.pool.layout.page_bytes)
    rows, seconds = plain.engine.counters.computed_tokens, 0.0
    plain.engine.submit(Ask(text, greedy(1)))
    again: list[Delta] = []
    while not again:
        start = time.perf_counter()
        again = plain.engine.step()
        seconds += time.perf_counter() - start
    run.without_seconds.append(seconds)
    run.without_rows.append(plain.engine.counters.computed_tokens - rows)
    run.same &= again[0].token_ids == delta.token_ids
    return delta.token_ids[0]


def _long_steps(llm: LLM, lengths: list[int]) -> dict[str, list[Any]]:
    """A step with the cache after each of ``lengths`` tokens: median seconds, bytes held."""
    seconds: list[float] = []
    held: list[int] = []
    for length in lengths:
        prompt = random_tokens((length,), length, llm.shape.vocab_size)
        request = llm.engine.submit(Ask(prompt, greedy(STEPS + 1))).request_id
        while not llm.engine.step():  # prefill
            pass
        held.append(held_pages(llm) * llm.pool.layout.page_bytes)
        taken = []
        for _ in range(STEPS - 1):
            start = time.perf_counter()
            llm.engine.step()
            taken.append(time.perf_counter() - start)
        seconds.append(statistics.median(taken))
        llm.engine.abort(request)
    return {"tokens": lengths, "seconds": seconds, "held_bytes": held}


def captions(record: Record) -> Captions:
    """What the picture says, with the numbers of ``record``."""
    summary, long, tokens = record.summary, record.data["long"], record.settings["tokens"]
    rows, again = summary["with_rows"], summary["without_rows"]
    quick, slow = (duration(summary[f"{way}_seconds"]) for way in ("with", "without"))
    lengths = long["tokens"]
    steps = [duration(seconds) for seconds in long["seconds"]]
    by = factor(summary["seconds_factor"])
    size = format_size(summary["bytes_per_token"])
    same = summary["same_tokens"]
    text = (
        f"{record.model} generates {tokens:,} tokens, every step both ways, "
        f"{medians_of(record.settings['repeats'])}; "
        f"{'the tokens are the same' if same else 'THE TOKENS DIFFER'}. With the cache a step "
        f"computes one key row a layer: {rows:,} in all, {quick}. Without it a step computes all "
        f"of them again: N(N+1)/2 = {again:,}, {slow}. Attention itself still reads every row at "
        f"every step, O(N) also with a cache: right, a step takes {steps[0]} after {lengths[0]:,} "
        f"tokens and {steps[-1]} after {lengths[-1]:,}, and the cache holds {size} a token."
    )
    zh = (
        f"{record.model} 生成 {tokens:,} 个 token，每一步都用两种方式各算一次，"
        f"{medians_of_zh(record.settings['repeats'])}；两种方式得到的 token "
        f"{'完全相同' if same else '不相同'}。有缓存时，每一步每层只算一行新的 key，总共 {rows:,} "
        f"行，用时 {quick}；没有缓存时，每一步都要把前面所有行重算一遍，共 N(N+1)/2 = {again:,} "
        f"行，用时 {slow}。注意：即使有缓存，注意力每一步仍要读一遍所有行，即 O(N)：见右列，"
        f"上下文为 {lengths[0]:,} 个 token 时一步用 {steps[0]}，"
        f"{lengths[-1]:,} 个时用 {steps[-1]}，而缓存每个 token 占 {size}。"
    )
    return Captions(
        Caption(
            f"{tokens:,} tokens in {quick} with the cache; {slow} without, {by} times as long", text
        ),
        Caption(f"生成 {tokens:,} 个 token：有缓存 {quick}，没有缓存 {slow}，是前者的 {by} 倍", zh),
    )
