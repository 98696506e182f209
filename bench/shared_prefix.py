"""What reading a shared prefix once a step saves a whole engine: grouped against ungrouped.

    python bench/shared_prefix.py [MODEL] [--shared 1024] [--own 32] [--requests 32] [--tokens 64]
                                  [--kv-cache-dtype bf16] [--isa PATH] [--threads N] [--repeats 3]
                                  [--json]

Requests at once, with shared tokens and tokens of their own, through two engines over the same
weights, in turn. Their answers are compared. Figures are medians, those of a step over the steps in
which all decode.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections import defaultdict

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.config import EngineConfig
from kvreuse.engine.engine import Engine
from kvreuse.kv.cache import KVCache
from kvreuse.load import load
from kvreuse.model.decoder import Decoder
from kvreuse.ops.backend import StepLimits
from kvreuse.ops.native import NativeBackend
from kvreuse.shape import ModelShape
from reporting import bench_parser, run_main

ROWS = 1024
POOL = "1GiB"


@dataclasses.dataclass(frozen=True)
class Workload:
    """So many requests with shared tokens and tokens of their own, and what they generate."""

    requests: int
    shared: int
    own: int
    tokens: int

    @property
    def positions(self) -> int:
        """Tokens of one request."""
        return self.shared + self.own + self.tokens


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one serving; the steps are those in which all requests decode."""

    tokens_per_second: float
    step_ms: float
    attention_ms: float
    step_mib: float
    """Keys and values read a step."""


class Served:
    """An engine whose attention and pages read are measured."""

    def __init__(self, decoder: Decoder, engine: Engine) -> None:
        self.decoder, self.engine = decoder, engine

    def serve(self, prompts: list[list[int]], tokens: int) -> tuple[Figures, list[list[int]]]:
        """All prompts at once, to the end; the figures and the answers."""
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        names = [self.engine.submit(Ask(prompt, params)).request_id for prompt in prompts]
        answers: dict[str, list[int]] = defaultdict(list)
        steps: list[tuple[float, float, int]] = []
        begin = time.perf_counter()
        while self.engine.has_unfinished:
            before = self._state()
            deltas = self.engine.step()
            after = self._state()
            for delta in deltas:
                answers[delta.request_id] += delta.token_ids
            if len(self.engine.sampling) == len(prompts):
                steps.append((after[0] - before[0], after[1] - before[1], after[2] - before[2]))
        seconds = time.perf_counter() - begin
        step, attention, read = (statistics.median(values) for values in zip(*steps, strict=True))
        figures = Figures(
            len(prompts) * tokens / seconds, step * 1e3, attention * 1e3, read / (1 << 20)
        )
        return figures, [answers[name] for name in names]

    def _state(self) -> tuple[float, float, int]:
        """Seconds of the clock, seconds in attention so far, bytes of pages read so far."""
        attention = self.decoder.seconds()["attention"]
        return time.perf_counter(), attention, self.decoder.page_bytes_read


def both_ways(config: EngineConfig, work: Workload) -> tuple[ModelShape, dict[str, Served]]:
    """The engine as it is, and one over the same weights that reads shared pages for each row."""
    loaded = load(config)
    shape, base = loaded.shape, loaded.runner
    backend = NativeBackend(config.isa, config.threads)
    pool = backend.pool(loaded.pool.layout, loaded.pool.num_pages)
    limits = StepLimits(
        rows=ROWS, samples=work.requests, sequences=work.requests, positions=work.positions
    )
    decoder = Decoder(shape, base.weights, backend, pool, limits, grouped=False)
    engine = Engine(
        decoder,
        KVCache(pool, b"ungrouped"),
        None,
        vocab_size=shape.vocab_size,
        max_model_len=work.positions,
    )
    return shape, {"grouped": Served(base, loaded.engine), "ungrouped": Served(decoder, engine)}


def measure(config: EngineConfig, work: Workload, repeats: int) -> dict[str, Figures]:
    """Medians of both ways. AssertionError where their answers differ."""
    shape, ways = both_ways(config, work)
    random = np.random.default_rng(0)
    runs: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(repeats):
        head = random.integers(0, shape.vocab_size, work.shared).tolist()
        own = random.integers(0, shape.vocab_size, (work.requests, work.own)).tolist()
        answers = []
        for name, served in ways.items():
            figures, answered = served.serve([head + tail for tail in own], work.tokens)
            runs[name].append(figures)
            answers.append(answered)
        assert answers[0] == answers[1]
    names = [field.name for field in dataclasses.fields(Figures)]
    return {
        way: Figures(*(statistics.median(getattr(one, name) for one in every) for name in names))
        for way, every in runs.items()
    }


def main() -> int:
    """Measure and print; the exit status."""
    parser = bench_parser(__doc__, repeats=3)
    parser.add_argument("--shared", type=int, default=1024, help="tokens that all prompts share")
    parser.add_argument("--own", type=int, default=32, help="tokens of each prompt behind them")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--kv-cache-dtype", default="bf16")
    options = parser.parse_args()
    work = Workload(options.requests, options.shared, options.own, options.tokens)
    config = EngineConfig(
        model=options.model,
        kv_cache_memory=POOL,
        kv_cache_dtype=options.kv_cache_dtype,
        force_kv_cache_dtype=True,
        max_model_len=work.positions,
        max_num_batched_tokens=ROWS,
        max_num_seqs=work.requests,
        threads=options.threads,
        isa=options.isa,
    )
    results = measure(config, work, options.repeats)
    if options.json:
        print(json.dumps({way: dataclasses.asdict(figures) for way, figures in results.items()}))
        return 0
    print(f"{'':<12}{'tok/s':>10}{'step ms':>10}{'attention ms':>15}{'MiB a step':>13}")
    for way, one in results.items():
        print(
            f"{way:<12}{one.tokens_per_second:>10,.0f}{one.step_ms:>10.2f}"
            f"{one.attention_ms:>15.2f}{one.step_mib:>13,.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
