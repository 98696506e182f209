"""Thousands of damaged model files: each is refused in one clear line, or served; nothing else.

    python bench/fuzz.py [--cases 5000] [--seed 1] [--commands 50] [--keep DIR] [--native FILE]
    python bench/fuzz.py --only CASE --keep DIR

Each case damages a small sound file (``mutations.py``), loads it completely and generates a token.
What must not be: an exception that is no ``KVReuseError``, a crash, a hang, memory beyond what the
sound file takes and twice the damaged one. The cases run in a process that is started anew
behind one that ends it. ``--native`` takes the extension from another file, one with sanitizers,
and judges neither memory nor the command line.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import faulthandler
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

HANG_SECONDS = 20
STDERR_SHOWN = 6000


def main(arguments: list[str] | None = None) -> int:
    """Run all cases; the exit status is 1 where one was at fault."""
    options = _parser().parse_args(arguments)
    if options.native:
        _load_native(options.native)
    if options.worker:
        return _work(options)
    start, total, faulty = time.perf_counter(), collections.Counter[str](), 0
    first, end = (
        (options.only, options.only + 1) if options.only is not None else (0, options.cases)
    )
    while first < end:
        first, found = _run_worker(options, first, end, total)
        for outcome in found:
            faulty += 1
            print(f"case {outcome['case']} ({outcome['mutation']} of {outcome['base']}):")
            print(*(f"  {fault}" for fault in outcome["faults"]), sep="\n", flush=True)
    words = ", ".join(f"{count:,} {name}" for name, count in sorted(total.items()))
    print(f"{words}; {faulty} at fault; {time.perf_counter() - start:.0f} s, seed {options.seed}")
    return int(faulty > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz.py", description="Damaged model files.")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--commands", type=int, default=50, help="of these, by the command line too"
    )
    parser.add_argument("--only", type=int, metavar="CASE", help="this case alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files at fault there")
    parser.add_argument("--native", type=Path, metavar="FILE", help="the extension to test")
    parser.add_argument("--worker", type=int, nargs=2, metavar=("FIRST", "END"), help="internal")
    return parser


def _load_native(path: Path) -> None:
    """Make ``path`` the extension of this process, before anything imports the other one."""
    name = "kvreuse.ops._native"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _run_worker(
    options: argparse.Namespace, first: int, end: int, total: collections.Counter[str]
) -> tuple[int, list[dict[str, Any]]]:
    """Cases from ``first`` on, until the process ends: the next case, and the outcomes at fault."""
    command = [sys.executable, __file__, "--worker", str(first), str(end)]
    command += ["--seed", str(options.seed), "--cases", str(options.cases)]
    command += ["--commands", str(options.commands if options.only is None else options.cases)]
    command += ["--keep", str(options.keep)] if options.keep else []
    command += ["--native", str(options.native)] if options.native else []
    faulty: list[dict[str, Any]] = []
    running: dict[str, Any] = {}
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                outcome = json.loads(line)
                if "done" in outcome:
                    running = {}
                    total["refused" if outcome["line"] else "served"] += 1
                    faulty += [outcome] if outcome["faults"] else []
                else:
                    running = outcome
        if not running and worker.returncode == 0:
            return end, faulty
        errors.seek(0)
        said = errors.read().decode(errors="replace")[-STDERR_SHOWN:]
    if not running:
        raise SystemExit(f"the worker cannot run: status {worker.returncode}\n{said}")
    total["crashed or hung"] += 1
    return int(running["case"]) + 1, [
        *faulty,
        {**running, "faults": [f"ended with status {worker.returncode}:\n{said}"]},
    ]


def _work(options: argparse.Namespace) -> int:
    """The cases of one process; says on standard output what it begins, and what came of it."""
    import fuzz_case  # noqa: PLC0415

    faulthandler.enable()
    tracemalloc.start()
    first, end = options.worker
    with tempfile.TemporaryDirectory(prefix="kvreuse-fuzz-") as name:
        folder = Path(name)
        bases = fuzz_case.write_bases(folder)
        sound = {}
        for base in [*bases, *bases]:  # the first time also imports and warms up
            sound[base] = fuzz_case.Outcome(-1, base.stem, "none")
            fuzz_case.measured(base, sound[base])
            if sound[base].line or sound[base].faults:
                raise SystemExit(f"the sound file is not served: {sound[base]}")
        for case in range(first, end):
            path = folder / f"case-{case}.gguf"
            base, mutation = fuzz_case.damage(case, options.seed, bases, path)
            outcome = fuzz_case.Outcome(case, base.stem, mutation)
            print(json.dumps(dataclasses.asdict(outcome)), flush=True)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            fuzz_case.measured(path, outcome)
            faulthandler.cancel_dump_traceback_later()
            if not options.native:  # sanitizers take memory of their own
                fuzz_case.compare(outcome, sound[base], path.stat().st_size)
            if not options.native and case * options.commands % options.cases < options.commands:
                fuzz_case.command(path, outcome)
            print(json.dumps({**dataclasses.asdict(outcome), "done": True}), flush=True)
            if outcome.faults and options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                path.rename(options.keep / f"seed-{options.seed}-{path.name}")
            path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
