"""What benches share: their options, medians over repeats, and how results are printed."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from kvreuse.errors import KVReuseError

Figures = dict[str, float]
"""Numbers of one case, by name."""


def bench_parser(description: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """The options of a bench of one model; ``repeats`` is the default of ``--repeats``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a GGUF file or a name")
    parser.add_argument("--isa", help="instruction-set path (default: the best of this machine)")
    parser.add_argument("--threads", type=int, help="default: the cores of this process")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of every figure over the runs of one case."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def show(results: Mapping[str, Figures], *, as_json: bool) -> None:
    """Print the figures of every case, for people or as one JSON object."""
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:<32}{value:>12,.3f}")


def run_main(main: Callable[[], int]) -> int:
    """The exit status of ``main``; an error of kvreuse ends it with one line and 2."""
    try:
        return main()
    except KVReuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
