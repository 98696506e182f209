"""What this machine can do at most, through the instructions that the kernels use.

    python bench/limits.py [--isa PATH] [--threads N] [--json]

Read bandwidth from memory and from the caches, integer and floating-point peaks, and the cost of
waking a team of threads. Every figure is the best of several runs: a limit, not an average.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from kvreuse.errors import ConfigError
from kvreuse.ops.native import NativeBackend, cpu_name

GIB, MIB = 1 << 30, 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bytes and operations a second, seconds. A multiply and an add count as two operations."""

    cpu: str
    isa: str
    threads: int
    memory_bandwidth: float
    l3_bandwidth: float
    l2_bandwidth: float
    int8_peak: float
    float_peak: float
    fork_join: float


def measure(backend: NativeBackend) -> Limits:
    """Takes about two seconds."""
    threads, kernels = backend.threads, backend.kernels
    return Limits(
        cpu=cpu_name(),
        isa=kernels.isa,
        threads=threads,
        memory_bandwidth=kernels.read_bandwidth(GIB, 4),
        l3_bandwidth=kernels.read_bandwidth(12 * MIB, 60),
        l2_bandwidth=kernels.read_bandwidth(threads * MIB // 2, 400),
        int8_peak=kernels.int8_peak(),
        float_peak=kernels.float_peak(),
        fork_join=kernels.fork_join_seconds(),
    )


def table(limits: Limits) -> str:
    """The limits for people."""
    products = "bf16 tiles" if limits.isa.startswith("amx") else "fp32 FMA"
    rows = [
        ("read from memory (1 GiB)", f"{limits.memory_bandwidth / 1e9:8.1f} GB/s"),
        ("read from 12 MiB", f"{limits.l3_bandwidth / 1e9:8.1f} GB/s"),
        ("read from 0.5 MiB a thread", f"{limits.l2_bandwidth / 1e9:8.1f} GB/s"),
        ("int8 products", f"{limits.int8_peak / 1e9:8.0f} Gop/s"),
        (f"{products}", f"{limits.float_peak / 1e9:8.0f} GFLOP/s"),
        ("fork and join", f"{limits.fork_join * 1e6:8.2f} us"),
    ]
    head = f"{limits.cpu}, {limits.isa}, {limits.threads} threads"
    return "\n".join([head, *(f"  {name:<28}{value}" for name, value in rows)])


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", help="instruction-set path (default: the best of this machine)")
    parser.add_argument("--threads", type=int, help="default: the cores of this process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        limits = measure(NativeBackend(options.isa, options.threads))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(limits)) if options.json else table(limits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
