"""kvreuse and other engines side by side: the same machine, model, token ids and threads.

    make bench-peers [PEERS_ARGS="..."]
    PYTHONPATH=bench .venv/bin/python -m peers [--model MODEL] [--threads 2] [--repeats 3]
        [--engines kvreuse,llama.cpp] [--json | --markdown] [--tiny]

Every run is a fresh process; engines take turns, and each round begins with another one. Figures
are medians. Everything is greedy, and an answer's length is fixed. One more process for each engine
tells whether it gives the same answers from its cache as computed, and in a batch as alone:
``bit for bit`` where the logits (or log-probabilities) that it shows are equal too. A file's format
matters: ``peers.requantize`` makes one for which the others have their fastest kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kvreuse.errors import KVReuseError
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer
from peers import report
from peers.cases import CHECK_STEPS, TIMED_STEPS, TINY, Figures, Prompts, Sizes
from peers.engines import PEERS, ROOT

REPEATS = 3
THREADS = 2


class WorkerError(Exception):
    """An engine failed; one line."""


def main() -> int:
    """Measure and print; the exit status."""
    options = _parser().parse_args()
    sizes = TINY if options.tiny else Sizes()
    try:
        names = _engines(options.engines)
        model = resolve(options.model)
        prompts = make_prompts(model, sizes)
        job = {
            "model": str(model.resolve()),
            "threads": options.threads,
            "sizes": dataclasses.asdict(sizes),
            "prompts": dataclasses.asdict(prompts),
        }
        results = measure(names, job, options.repeats)
    except (KVReuseError, WorkerError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([dataclasses.asdict(result) for result in results], indent=2))
        return 0
    if options.markdown:
        print(report.markdown(results, sizes))
        return 0
    title = f"{model.name}, {options.threads} threads, medians of {options.repeats}"
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(report.rich_table(results, sizes, title))
    for note in report.notes(results):
        console.print(note, highlight=False)
    return 0


def make_prompts(model: Path, sizes: Sizes) -> Prompts:
    """Prompts of the text of Python's interactive help, in the model's tokens."""
    with open_checkpoint(model) as checkpoint:
        tokenizer = Tokenizer(checkpoint.vocabulary)
    topics: dict[str, str] = pydoc_data.topics.topics
    return Prompts.cut(tokenizer.encode("\n\n".join(topics[n] for n in sorted(topics))), sizes)


def measure(names: list[str], job: dict[str, Any], repeats: int) -> list[report.Result]:
    """All engines in turn, ``repeats`` times, then their checks."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    same: dict[str, dict[str, dict[str, int]]] = {}
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        total = len(names) * (repeats * (TIMED_STEPS + 1) + CHECK_STEPS + 1)
        task = bar.add_task("", total=total)

        def run(name: str, words: str, check: bool) -> dict[str, Any]:
            bar.update(task, description=f"{PEERS[name].title}, {words}")
            return _work(name, job | {"check": check}, lambda: bar.advance(task))

        for turn in range(repeats):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                runs[name].append(run(name, f"run {turn + 1} of {repeats}", False))
        for name in names:
            same[name] = run(name, "same answers?", True)
    return [_result(name, runs[name], same[name]) for name in names]


def _result(
    name: str, runs: list[dict[str, Any]], same: dict[str, dict[str, int]]
) -> report.Result:
    every: list[Figures] = [run["figures"] for run in runs]
    medians = {key: statistics.median(run[key] for run in every) for key in every[0]}
    version, settings = runs[0]["version"], runs[0]["settings"]
    return report.Result(PEERS[name].title, version, settings, medians, every, same)


def _work(name: str, job: dict[str, Any], advance: Any) -> dict[str, Any]:
    """The result of one process. WorkerError with the last line it said, if it failed."""
    peer = PEERS[name]
    command = [str(peer.python), "-m", "peers.worker", peer.module]
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd=ROOT / "bench",
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            last = ""
            for line in process.stdout:
                last = line
                advance()
        if process.returncode:
            said.seek(0)
            lines = said.read().strip().splitlines() or [f"exit status {process.returncode}"]
            raise WorkerError(f"{peer.title}: {lines[-1]}")
    result: dict[str, Any] = json.loads(last)
    return result


def _engines(names: str) -> list[str]:
    """The engines asked for. WorkerError for one that is not there."""
    asked = list(PEERS) if names == "all" else names.split(",")
    for name in asked:
        if name not in PEERS:
            raise WorkerError(f"there is no engine {name!r}; there are {', '.join(PEERS)}")
        if not PEERS[name].python.exists():
            raise WorkerError(f"{PEERS[name].title} is not installed here: run `make bench-peers`")
    return asked


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file or a name")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"default: {THREADS}")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"default: {REPEATS}")
    parser.add_argument("--engines", default="all", help=f"of {', '.join(PEERS)}; default: all")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: does everything work?")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all runs as one JSON object")
    form.add_argument("--markdown", action="store_true", help="print a table for a README")
    return parser


if __name__ == "__main__":
    sys.exit(main())
