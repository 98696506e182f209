"""What keys and values in 8 and 4 bits cost or save in time, side by side with bf16.

    python bench/kv_codecs.py [MODEL] [--isa PATH] [--threads N] [--repeats 5] [--json]

First the attention kernel alone: one layer shaped as the model's, 16 sequences of 4,096 tokens, so
many that no cache holds their pages, a new token for each. Then the model: prefill, and decode at
several lengths, in the codecs that its calibration, or the lack of one, gives. All codecs run in
turn, figures are medians. ``of memory`` is the bytes of pages read a second over what the machine
reads, measured in the same run; pages that lie in a cache are read faster than memory is.
"""

from __future__ import annotations

import json
import statistics
import sys

import numpy as np

from engine import Bench, Case
from kvreuse.errors import KVReuseError
from kvreuse.kv.codec.codec import UNIFORM, KVCodec, make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.model.calibrated import codec_for
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.native import NativeBackend
from kvreuse.shape import ModelShape
from layer import LayerStep
from reporting import bench_parser

SEQUENCES, TOKENS = 16, 4096
CALLS = 3
MIB = 1 << 20
BASIS = "bf16"
CASES = [
    Case("prefill 512", 512, 1, False),
    Case("prefill 1,900", 1900, 1, False),
    Case("decode, context 64", 64, 1, True),
    Case("decode, context 1,900", 1900, 1, True),
    Case("decode, 8 x context 1,900", 1900, 8, True),
]
Figures = dict[str, dict[str, float]]


class Layer:
    """One layer's pool in one codec, and a step over it of one token a sequence."""

    def __init__(self, backend: NativeBackend, shape: ModelShape, codec: KVCodec) -> None:
        layout = KVLayout(shape.layers[:1], codec=codec)
        pages = SEQUENCES * layout.pages_for(TOKENS)
        # A byte of which also fp16 and fp32 scales are numbers.
        pool = backend.pool(layout, pages)
        pool.data[:] = 0x3C
        self.nbytes = pool.nbytes
        order = np.random.default_rng(1).permutation(pages).astype(np.int32)
        self._step = LayerStep(backend, shape, pool, order.reshape(SEQUENCES, -1), TOKENS)

    def seconds(self) -> float:
        """Of one call."""
        return sum(self._step.run()[0] for _ in range(CALLS)) / CALLS


def kernel(backend: NativeBackend, shape: ModelShape, repeats: int) -> Figures:
    """The attention kernel alone, by codec."""
    codecs = {name: make_codec(name, shape.layers[:1]) for name in UNIFORM}
    layers = {name: Layer(backend, shape, codec) for name, codec in codecs.items()}
    times: dict[str, list[float]] = {name: [] for name in layers}
    memory = []
    for _ in range(4 * repeats):
        memory.append(backend.kernels.read_bandwidth(512 * MIB, 1))
        for name, layer in layers.items():
            times[name].append(layer.seconds())
    figures = {}
    for name, layer in layers.items():
        seconds = statistics.median(times[name])
        faster = [first / own for first, own in zip(times[BASIS], times[name], strict=True)]
        figures[name] = {
            "rows/s": SEQUENCES * shape.num_heads / seconds,
            "GB/s": layer.nbytes / seconds / 1e9,
            "of memory": layer.nbytes / seconds / statistics.median(memory),
            f"times {BASIS}": statistics.median(faster),
        }
    return figures


def model(bench: Bench, path: str, repeats: int) -> dict[str, Figures]:
    """Every case of the model, by codec."""
    with open_checkpoint(resolve(path)) as checkpoint:
        benches = {
            name: bench.with_codec(codec_for(checkpoint, name, None, force=True))
            for name in UNIFORM
        }
    found: dict[str, Figures] = {}
    for case in CASES:
        runs: dict[str, list[float]] = {name: [] for name in benches}
        for _ in range(repeats + 1):
            for name, one in benches.items():
                runs[name].append(one.run(case).seconds)
        found[case.name] = {}
        for name in benches:
            pairs = zip(runs[BASIS][1:], runs[name][1:], strict=True)
            seconds = statistics.median(runs[name][1:])
            found[case.name][name] = {
                "tok/s": (case.sequences if case.decode else case.context) / seconds,
                f"times {BASIS}": statistics.median(first / own for first, own in pairs),
            }
    return found


def table(name: str, figures: Figures) -> str:
    """For people."""
    columns = list(next(iter(figures.values())))
    lines = [f"{name:<28}" + "".join(f"{column:>12}" for column in columns)]
    for codec, row in figures.items():
        cells = [
            f"{value:.0%}" if key.startswith("of ") else f"{value:,.2f}"
            for key, value in row.items()
        ]
        lines.append(f"  {codec:<26}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Measure and print; the exit status."""
    options = bench_parser(__doc__).parse_args()
    try:
        backend = NativeBackend(options.isa, options.threads)
        bench = Bench(options.model, backend)
    except KVReuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results = {"attention alone": kernel(backend, bench.shape, options.repeats)}
    results |= model(bench, options.model, options.repeats)
    if options.json:
        print(json.dumps({"isa": backend.isa, "threads": backend.threads, "results": results}))
        return 0
    print(f"{backend.isa}, {backend.threads} threads")
    for name, figures in results.items():
        print(table(name, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
