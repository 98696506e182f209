"""How fast the engine is, and how near to the machine's limits.

    python bench/engine.py [MODEL] [--isa PATH] [--threads N] [--repeats 5] [--only TEXT]
                           [--json]

Prefill of 128, 512 and 1,900 tokens; decode at contexts of 64 and 1,900, and of 8 and 32 sequences
at 256. Everything runs through the engine, greedy; each figure is the median of the repeats. The
limits are measured in the same run, those that ``of limit`` is about right before each repeat: on
a machine with neighbours memory's bandwidth changes by the minute. A step cannot be faster than the
larger of two times: its bytes (weights and pages) at memory's bandwidth, and its products at the
peak rate; ``of limit`` is that bound over the measured time. (Weights that fit a cache can be read
faster than memory.) ``Python`` is the part of a step spent outside the kernels.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.config import EngineConfig
from kvreuse.kv.codec.codec import BF16, KVCodec
from kvreuse.load import load
from kvreuse.ops.native import NativeBackend
from limits import measure as measure_limits
from limits import table as limits_table
from reporting import bench_parser, run_main

MIB = 1 << 20
MAX_LEN = 2048
BUDGET = 512
SEATS = 32
DECODE_STEPS = 24
POOL = "1GiB"


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload: ``sequences`` prompts of ``context`` tokens, to be prefilled or decoded on."""

    name: str
    context: int
    sequences: int
    decode: bool


CASES = [
    Case("prefill 128", 128, 1, False),
    Case("prefill 512", 512, 1, False),
    Case("prefill 1,900", 1900, 1, False),
    Case("decode, context 64", 64, 1, True),
    Case("decode, context 1,900", 1900, 1, True),
    Case("decode, 8 x context 256", 256, 8, True),
    Case("decode, 32 x context 256", 256, 32, True),
]


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one case: medians over the repeats. Seconds of a step, or of a whole prefill."""

    name: str
    tokens_per_second: float
    seconds: float
    gflops: float
    of_limit: float
    python_share: float
    kernels: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """Of one repeat: seconds of a step, or of a whole prefill, and of its kernels."""

    seconds: float
    kernels: dict[str, float]


class Bench:
    """One model, with an engine whose kernels are timed."""

    def __init__(self, model: str, backend: NativeBackend, kv_cache_dtype: str = BF16.name) -> None:
        """Load the model on the path and threads of ``backend``, with pages for every case."""
        self._model, self._backend = model, backend
        config = EngineConfig(
            model=model,
            kv_cache_memory=POOL,
            kv_cache_dtype=kv_cache_dtype,
            force_kv_cache_dtype=True,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEATS,
            enable_prefix_caching=False,
            isa=backend.isa,
            threads=backend.threads,
        )
        loaded = load(config)
        self.shape = loaded.shape
        self.layout = loaded.pool.layout
        self.decoder = loaded.runner
        self.engine = loaded.engine
        self._random = np.random.default_rng(0)

    def with_codec(self, codec: KVCodec) -> Bench:
        """The same model with keys and values in another codec."""
        return Bench(self._model, self._backend, codec.name)

    def run(self, case: Case) -> Run:
        """A prefill, or some steps of decoding."""
        # Sequences decode while the last prompts are still computed: enough tokens for that too.
        tokens = DECODE_STEPS + 2 + case.sequences if case.decode else 1
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        requests = []
        for _ in range(case.sequences):
            ids = self._random.integers(1, self.shape.vocab_size, case.context)
            requests.append(self.engine.submit(Ask([int(i) for i in ids], params)).request_id)
        if case.decode:
            answered: set[str] = set()
            while len(answered) < case.sequences:
                answered |= {delta.request_id for delta in self.engine.step()}
        before, begin, steps = self.decoder.seconds(), time.perf_counter(), 0
        while self.engine.has_unfinished and steps < DECODE_STEPS:
            self.engine.step()
            steps += 1
        times = steps if case.decode else 1
        seconds = (time.perf_counter() - begin) / times
        by_kernel = {n: (s - before[n]) / times for n, s in self.decoder.seconds().items()}
        for request in requests:
            self.engine.abort(request)
        return Run(seconds, by_kernel)

    def work(self, case: Case) -> tuple[float, float, float]:
        """(operations of the linears, operations of attention, bytes read) of a step or prefill."""
        rows = case.sequences if case.decode else case.context
        steps = 1 if case.decode else -(-case.context // BUDGET)
        seen = case.context if case.decode else case.context / 2
        layers = self.decoder.weights.layers
        inside = sum(
            matrix.columns * matrix.rows
            for layer in layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
            for matrix in linear
        )
        logits = self.shape.vocab_size * self.shape.hidden_size
        attention = rows * seen * self.shape.q_size * 2 * self.shape.num_layers
        nbytes = steps * self.decoder.weights.nbytes
        nbytes += case.sequences * case.context * self.layout.bytes_per_token
        return 2 * (rows * inside + case.sequences * logits), 2 * attention, nbytes

    def bound(self, case: Case) -> float:
        """The least seconds that the machine's limits, as they are now, allow."""
        linears, attention, nbytes = self.work(case)
        kernels = self._backend.kernels
        compute = linears / kernels.int8_peak() + attention / kernels.float_peak()
        return max(compute, nbytes / kernels.read_bandwidth(512 * MIB, 4))


def measure(bench: Bench, cases: list[Case], repeats: int) -> list[Result]:
    """The cases in turn, ``repeats`` times: a machine that slows down slows all of them."""
    runs: dict[str, list[Run]] = {c.name: [] for c in cases}
    bounds: dict[str, list[float]] = {c.name: [] for c in cases}
    for case in cases:
        bench.run(case)
    for _ in range(repeats):
        for case in cases:
            bounds[case.name].append(bench.bound(case))
            runs[case.name].append(bench.run(case))
    return [_result(case, runs[case.name], bounds[case.name], bench) for case in cases]


def _result(case: Case, runs: list[Run], bounds: list[float], bench: Bench) -> Result:
    middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    tokens = case.sequences if case.decode else case.context
    return Result(
        name=case.name,
        tokens_per_second=tokens / middle.seconds,
        seconds=middle.seconds,
        gflops=sum(bench.work(case)[:2]) / middle.seconds / 1e9,
        of_limit=statistics.median(
            bound / run.seconds for bound, run in zip(bounds, runs, strict=True)
        ),
        python_share=statistics.median(1 - sum(run.kernels.values()) / run.seconds for run in runs),
        kernels=middle.kernels,
    )


def table(results: list[Result]) -> str:
    """The results for people: speed, then where the time goes."""
    lines = [f"{'':<26}{'tok/s':>9}{'ms':>9}{'GFLOP/s':>9}{'of limit':>10}{'Python':>9}"]
    lines += [
        f"{r.name:<26}{r.tokens_per_second:>9,.0f}{r.seconds * 1e3:>9.2f}"
        f"{r.gflops:>9,.0f}{r.of_limit:>10.0%}{r.python_share:>9.1%}"
        for r in results
    ]
    names = sorted({name for r in results for name in r.kernels})
    lines += [
        "",
        f"{'ms by kernel':<26}" + "".join(f"{n:>11}" for n in names),
    ]
    lines += [
        f"{r.name:<26}" + "".join(f"{r.kernels.get(n, 0) * 1e3:>11.2f}" for n in names)
        for r in results
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print; the exit status."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="the cases with this in their name")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    if not cases or options.repeats < 1:
        names = ", ".join(repr(case.name) for case in CASES)
        print(f"error: --only takes a part of {names}; --repeats at least 1", file=sys.stderr)
        return 2
    backend = NativeBackend(options.isa, options.threads)
    bench = Bench(options.model, backend)
    limits = measure_limits(backend)
    results = measure(bench, cases, options.repeats)
    if options.json:
        report = [dataclasses.asdict(result) for result in results]
        print(json.dumps({"limits": dataclasses.asdict(limits), "results": report}))
    else:
        print(limits_table(limits), table(results), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
