"""What reading a shared prefix once saves: the attention kernel alone, grouped against ungrouped.

    python bench/attention.py [--prefix 8192] [--kv-heads 8] [--head-dim 128] [--group-size 1]
                              [--own 32] [--isa PATH] [--threads N] [--repeats 7] [--json]

One layer, one new token for each of 1 to 64 sequences that share a prefix and have tokens of their
own behind it. Both ways run in turn, figures are medians. `of memory` and `of FMA` are the bytes of
pages read and the products done a second, over what the machine reads from memory and multiplies
at most, measured in the same run; pages that lie in the last cache are read faster than memory is.
The last lines share nothing: there, both plans are to cost the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys

import numpy as np

from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.native import NativeBackend
from kvreuse.shape import ModelShape, RopeSpec, attention
from layer import LayerStep

PAGE = 32
ROWS = (1, 4, 16, 64)
GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Shape:
    """Heads, and tokens that sequences share and have for themselves."""

    kv_heads: int
    group_size: int
    head_dim: int
    prefix: int
    own: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group_size

    @property
    def model(self) -> ModelShape:
        """A model of one layer with these heads."""
        return ModelShape(
            architecture="bench",
            layers=(attention(self.kv_heads, self.head_dim),),
            hidden_size=self.head_dim,
            intermediate_size=self.head_dim,
            num_heads=self.heads,
            vocab_size=1,
            context_length=self.prefix + self.own,
            rms_norm_eps=1e-5,
            rope=RopeSpec("half", 1e4, self.head_dim),
        )


@dataclasses.dataclass(frozen=True)
class Figures:
    """Medians of one way to plan a step. ``products``: a multiply and an add count as two."""

    seconds: float
    bytes_read: int
    products: int


class Layer:
    """One layer's pool, full of random keys and values, and what a call needs."""

    def __init__(self, backend: NativeBackend, shape: Shape, sequences: int, shared: bool) -> None:
        self.shape, self.sequences = shape, sequences
        prefix, own = shape.prefix // PAGE, -(-shape.own // PAGE)
        pages = (prefix if shared else prefix * sequences) + own * sequences
        self.positions = prefix * PAGE + shape.own
        values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
        bf16 = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        pool = backend.pool(KVLayout.of(shape.model, PAGE), pages)
        pool.data[:] = np.resize(bf16, pool.data.shape)
        order = np.random.default_rng(1).permutation(pages).astype(np.int32)
        heads = np.tile(order[:prefix], (sequences, 1))
        if not shared:
            heads = order[: prefix * sequences].reshape(sequences, prefix)
        tails = order[-own * sequences :].reshape(sequences, own)
        tables = np.ascontiguousarray(np.concatenate([heads, tails], axis=1))
        self.steps = {
            grouped: LayerStep(backend, shape.model, pool, tables, self.positions, grouped=grouped)
            for grouped in (True, False)
        }

    def measure(self, repeats: int) -> tuple[Figures, Figures]:
        """Grouped and ungrouped, in turn. AssertionError where their results differ."""
        seconds: dict[bool, list[float]] = {True: [], False: []}
        results, read = {}, {}
        for _ in range(repeats + 1):
            for grouped, step in self.steps.items():
                duration, read[grouped] = step.run()
                seconds[grouped].append(duration)
                results[grouped] = step.result()
        assert (results[True] == results[False]).all()
        shape = self.shape
        products = 4 * self.sequences * shape.heads * self.positions * shape.head_dim
        together, apart = (
            Figures(
                statistics.median(seconds[way][1:]),
                read[way],
                products,
            )
            for way in (True, False)
        )
        return together, apart


def compare(
    backend: NativeBackend, shape: Shape, sequences: int, shared: bool, repeats: int
) -> dict[str, float]:
    """One line of the table."""
    layer, kernels = Layer(backend, shape, sequences, shared), backend.kernels
    grouped, ungrouped = layer.measure(repeats)
    memory, peak = kernels.read_bandwidth(GIB // 2, 2), kernels.float_peak()
    line: dict[str, float] = {
        "rows": sequences,
        "shared": shape.prefix if shared else 0,
        "times faster": ungrouped.seconds / grouped.seconds,
    }
    for name, figures in (("grouped", grouped), ("ungrouped", ungrouped)):
        line |= {
            f"{name} ms": figures.seconds * 1e3,
            f"{name} MiB": figures.bytes_read / (1 << 20),
            f"{name} of memory": figures.bytes_read / figures.seconds / memory,
            f"{name} of FMA": figures.products / figures.seconds / peak,
        }
    return line | {"memory GB/s": memory / 1e9, "FMA GFLOP/s": peak / 1e9}


def table(lines: list[dict[str, float]]) -> str:
    """The lines for people."""
    head = "  rows  shared    ungrouped: ms     MiB  of memory  of FMA"
    head += "      grouped: ms     MiB  of memory  of FMA    times faster"
    rows = [head]
    for line in lines:
        row = f"{line['rows']:>6.0f}{line['shared']:>8.0f}"
        for name, width in (("ungrouped", 17), ("grouped", 17)):
            row += f"{line[f'{name} ms']:>{width}.3f}{line[f'{name} MiB']:>8.0f}"
            row += f"{line[f'{name} of memory']:>11.0%}{line[f'{name} of FMA']:>8.0%}"
        rows.append(f"{row}{line['times faster']:>16.2f}")
    return "\n".join(rows)


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=int, default=8192, help="shared tokens, a multiple of 32")
    parser.add_argument("--own", type=int, default=32, help="tokens of each sequence behind it")
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--group-size", type=int, default=1, help="query heads of a KV head")
    parser.add_argument("--isa", help="instruction-set path (default: the best of this machine)")
    parser.add_argument("--threads", type=int, help="default: the cores of this process")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        backend = NativeBackend(options.isa, options.threads)
        isa = backend.isa
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shape = Shape(
        options.kv_heads, options.group_size, options.head_dim, options.prefix, options.own
    )
    lines = [compare(backend, shape, rows, True, options.repeats) for rows in ROWS]
    alone = dataclasses.replace(shape, prefix=512)
    lines += [compare(backend, alone, rows, False, 5 * options.repeats) for rows in ROWS]
    if options.json:
        print(json.dumps({"isa": isa, "threads": backend.threads, "lines": lines}))
    else:
        print(f"{isa}, {backend.threads} threads")
        print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
