"""What reuse saves, and what it costs.

    python bench/reuse.py [MODEL] [--isa PATH] [--threads N] [--repeats 3] [--only TEXT]
                          [--trace CSV] [--json]

Every prompt is random tokens of its own run, so that nothing is reused but what a case is about.
Everything is greedy and runs through the engine; each figure is the median of the repeats. With a
trace of lengths (columns ``ContextTokens`` and ``GeneratedTokens``, as Azure's LLM inference traces
have them) also the memory that pages waste.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.metrics import Counters
from kvreuse.engine.request import Request
from kvreuse.engine.scheduler import Scheduler
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.llm import LLM
from reporting import Figures, bench_parser, medians, run_main, show

OVERHEAD_PAIRS = 9
SMALL_POOL, POOL = "192MiB", "384MiB"
MOST_TOKENS = 1 << 17
TOKENS = 32000  # no model's vocabulary is smaller
PARAMS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=64)


class Tokens:
    """Random prompts, of tokens that no other prompt has."""

    def __init__(self, *, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, count: int) -> list[int]:
        """So many tokens."""
        drawn: list[int] = self._random.integers(1, TOKENS, count).tolist()
        return drawn


def full_llm(
    model: str, machine: dict[str, Any], tokens: Tokens, *, caching: bool, pool: str
) -> LLM:
    """A model whose pool is full, as that of a server that has run for a while.

    A page that was never touched is slow to write, for a reason that is not the engine's.
    """
    llm = LLM(
        model,
        kv_cache_memory=pool,
        max_model_len=4096,
        enable_prefix_caching=caching,
        **machine,
    )
    for _ in range(1 + llm.cache.pool.num_pages * llm.cache.page_size // 4096):
        serve(llm, [tokens(512) for _ in range(8)], 1)
    return llm


class Bench:
    """One model with prefix caching, and room for all that a case serves."""

    def __init__(self, model: str, machine: dict[str, Any]) -> None:
        self.tokens = Tokens(seed=0)
        self._llm = full_llm(model, machine, self.tokens, caching=True, pool=POOL)

    def shared(self) -> Figures:
        """32 requests at once: 1,024 shared tokens and 32 of their own, 64 out."""
        head = self.tokens(1024)
        return serve(self._llm, [head + self.tokens(32) for _ in range(32)], 64)

    def distinct(self) -> Figures:
        """32 requests at once, 256 tokens, nothing shared, 64 out."""
        return serve(self._llm, [self.tokens(256) for _ in range(32)], 64)

    def again(self) -> Figures:
        """1,900 tokens, and again, and with 20 others after row 1,880: first tokens."""
        prompt = self.tokens(1900)
        cold = serve(self._llm, [prompt], 24)
        start = time.perf_counter()
        warm = serve(self._llm, [prompt], 25)
        decode = (time.perf_counter() - start - warm["first token, mean ms"] / 1e3) / 24
        parted = serve(self._llm, [prompt[:1880] + self.tokens(20)], 1)
        tail = self._prefill_after(prompt, 20)
        return {
            "cold ms": cold["first token, mean ms"],
            "warm ms": warm["first token, mean ms"],
            "decode step ms": decode * 1e3,
            "decode steps": warm["first token, mean ms"] / decode / 1e3,
            "20 others ms": parted["first token, mean ms"],
            "20 after 1,900 ms": tail * 1e3,
        }

    def _prefill_after(self, prompt: list[int], count: int) -> float:
        """Seconds of a step that computes ``count`` tokens of a running sequence."""
        engine = self._llm.engine
        engine.submit(Ask(prompt, dataclasses.replace(PARAMS, max_tokens=64)))
        engine.step()
        (request,) = engine.scheduler.running
        for token in self.tokens(count - 1):
            request.append(token)
        start = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - start
        engine.abort(request.request_id)
        return seconds


class Pair:
    """A model with prefix caching, and one without, side by side."""

    def __init__(self, model: str, machine: dict[str, Any]) -> None:
        self._tokens = Tokens(seed=1)
        self._on, self._off = (
            full_llm(model, machine, self._tokens, caching=caching, pool=SMALL_POOL)
            for caching in (True, False)
        )

    def three_quarters(self) -> Figures:
        """8 requests at once, 512 tokens, 75% shared by all, 16 out: with caching and without."""
        head = self._tokens(384)
        serve(self._on, [head], 1)
        prompts = [head + self._tokens(128) for _ in range(8)]
        on, off = (serve(llm, prompts, 16) for llm in (self._on, self._off))
        times = off["first token, mean ms"] / on["first token, mean ms"]
        return {"first token, times sooner": times, "of the tokens": on["prefilled"] / (8 * 512)}

    def overhead(self) -> Figures:
        """8 requests at once, 256 tokens, nothing shared, 32 out: with caching beside without."""
        ratios, outside = [], []
        for turn in range(OVERHEAD_PAIRS):
            prompts = [self._tokens(256) for _ in range(8)]
            order = (self._on, self._off) if turn % 2 else (self._off, self._on)
            runs = {llm: serve(llm, prompts, 32) for llm in order}
            on, off = runs[self._on], runs[self._off]
            ratios.append(on["seconds"] / off["seconds"])
            more = on["outside of kernels, s"] - off["outside of kernels, s"]
            outside.append(100 * more / off["seconds"])
        return {
            "of the time without": statistics.median(ratios),
            "more outside of kernels, %": statistics.median(outside),
        }


def serve(llm: LLM, prompts: Sequence[list[int]], max_tokens: int) -> Figures:
    """All at once: seconds, output tokens a second, tokens computed, the first token's time."""
    counters = llm.engine.counters
    before, kernels = counters.computed_tokens, sum(llm.runner.seconds().values())
    start = time.perf_counter()
    outputs = llm.generate(prompts, dataclasses.replace(PARAMS, max_tokens=max_tokens))
    seconds = time.perf_counter() - start
    first = [output.metrics.time_to_first_token or 0.0 for output in outputs]
    decoded = len(prompts) * (max_tokens - 1)
    return {
        "tok/s": len(prompts) * max_tokens / seconds,
        "prefilled": counters.computed_tokens - before - decoded,
        "first token, mean ms": statistics.mean(first) * 1e3,
        "seconds": seconds,
        "outside of kernels, s": seconds - sum(llm.runner.seconds().values()) + kernels,
    }


def planning() -> Figures:
    """Milliseconds of Python that plan a step: the mean of 100."""
    return {
        f"{running} running, {waiting} waiting": _plan(running, waiting)
        for running, waiting in ((1, 0), (16, 0), (64, 250), (256, 1000), (256, 4000))
    }


def _plan(running: int, waiting: int) -> float:
    cache = KVCache(PagePool(KVLayout.uniform(1, 1, 32), 64 * running), b"")
    scheduler = Scheduler(
        cache, max_num_batched_tokens=1024, max_num_seqs=running, counters=Counters()
    )
    random = np.random.default_rng(0)
    for index in range(running + waiting):
        ids = random.integers(0, 1000, 64).astype(np.int32)
        scheduler.add(Request(Ask(ids, PARAMS), str(index), ids, max_tokens=1000))
    seconds: list[float] = []
    while len(seconds) < 100:
        start = time.perf_counter()
        plan = scheduler.plan()
        taken = time.perf_counter() - start
        assert plan is not None
        plan = scheduler.begin(plan)
        scheduler.finish(plan)
        for request, _ in plan.works:
            if request.num_computed_tokens == request.num_tokens:
                request.append(1)
        if len(scheduler.running) == running:
            seconds.append(taken)
    return statistics.mean(seconds) * 1e3


def waste(trace: Path, page_size: int = 32) -> Figures:
    """The share of the pages' rows that stay empty, over the lengths of a trace."""
    pool = PagePool(KVLayout.uniform(1, 1, 32, page_size=page_size), 2 * MOST_TOKENS // page_size)
    cache = KVCache(pool, b"", enable_prefix_caching=False)
    ids = np.zeros(MOST_TOKENS, dtype=np.int32)
    used = rows = requests = 0
    with trace.open(newline="") as file:
        for row in csv.DictReader(file):
            # The last token that is chosen is never written.
            tokens = int(row["ContextTokens"]) + int(row["GeneratedTokens"]) - 1
            seq, _ = cache.open(cache.lookup(ids[:tokens]))
            if not cache.reserve(seq, tokens):
                raise ValueError(f"{tokens} tokens are more than this bench has room for")
            cache.commit(seq, ids[:tokens], tokens)
            used, rows, requests = used + tokens, rows + seq.num_pages * page_size, requests + 1
            cache.close(seq, ids[:tokens])
    return {"requests": requests, "tokens": used, "wasted, %": (1 - used / rows) * 100}


def cases_of(model: str, machine: dict[str, Any]) -> dict[str, Callable[[], Figures]]:
    """Every case by what it is; models are loaded when a case first needs them."""
    bench = functools.cache(lambda: Bench(model, machine))
    pair = functools.cache(lambda: Pair(model, machine))
    return {
        Bench.shared.__doc__ or "": lambda: bench().shared(),
        Bench.distinct.__doc__ or "": lambda: bench().distinct(),
        Pair.three_quarters.__doc__ or "": lambda: pair().three_quarters(),
        Bench.again.__doc__ or "": lambda: bench().again(),
        Pair.overhead.__doc__ or "": lambda: pair().overhead(),
        planning.__doc__ or "": planning,
    }


def main() -> int:
    """Measure and print; the exit status."""
    parser = bench_parser(__doc__, repeats=3)
    parser.add_argument("--trace", type=Path, metavar="CSV", help="lengths of requests")
    parser.add_argument("--only", default="", help="the cases with this in their description")
    options = parser.parse_args()
    machine = {"threads": options.threads, "isa": options.isa}
    cases = {
        name: case
        for name, case in cases_of(options.model, machine).items()
        if options.only in name
    }
    runs: dict[str, list[Figures]] = {name: [] for name in cases}
    for _ in range(options.repeats):
        for name, case in cases.items():
            runs[name].append(case())
    results = {name: medians(every) for name, every in runs.items()}
    if options.trace is not None:
        results[waste.__doc__ or ""] = waste(options.trace)
    show(results, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
