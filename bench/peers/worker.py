"""One engine in a process of its own: ``python -m peers.worker MODULE``. Standard library only.

A job is one JSON object on standard input; standard output gets a line ``{}`` for each part done
and a last line with the result. What libraries print goes to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from peers import cases
from peers.adapter import Adapter, Setup


def main() -> int:
    """Do the job; the exit status."""
    job = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sizes, prompts = cases.Sizes(**job["sizes"]), cases.Prompts(**job["prompts"])
    setup = cases.setup_for(job["model"], job["threads"], sizes)
    work = check if job["check"] else measure
    result = work(sys.argv[1], setup, prompts, sizes, lambda: print("{}", file=answers))
    print(json.dumps(result), file=answers)
    return 0


def measure(
    module: str, setup: Setup, prompts: cases.Prompts, sizes: cases.Sizes, done: cases.Progress
) -> dict[str, Any]:
    """Seconds to be ready, from the import on; the figures; the peak of memory in MiB."""
    start = time.perf_counter()
    engine = _load(module, setup)
    seconds = time.perf_counter() - start
    figures = cases.measure(engine, prompts, sizes, done)
    figures |= {"load": seconds, "memory": peak_memory() / 2**20}
    return {"version": engine.version, "settings": engine.settings, "figures": figures}


def check(
    module: str, setup: Setup, prompts: cases.Prompts, sizes: cases.Sizes, done: cases.Progress
) -> dict[str, Any]:
    """Whether answers are the same from the cache or not, in a batch or alone."""
    engine = _load(module, dataclasses.replace(setup, scores=True))
    served = cases.answers_with_reuse(engine, prompts, sizes, done)
    engine.close()
    engine = _load(module, dataclasses.replace(setup, scores=True, reuse=False))
    alone = cases.answers_alone(engine, prompts, sizes, done)
    return {name: cases.compare(served[name], alone[name]) for name in served}


def peak_memory() -> int:
    """The most bytes of memory that this process had resident, mapped files included.

    ``ru_maxrss`` would not do: it begins with the size of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: this needs Linux")


def _load(module: str, setup: Setup) -> Adapter:
    engine: Adapter = importlib.import_module(module).Engine(setup)
    return engine


if __name__ == "__main__":
    sys.exit(main())
