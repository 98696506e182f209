"""Recorded calls of agents through HTTP: how much of them is reused, and how soon they answer.

    python bench/replay.py FOLDER [MODEL] [--trace OUT.jsonl] [--kv-cache-memory 1GiB] [--calls N]

FOLDER holds files of one JSON object a line: ``timestamp`` (microseconds), ``input`` and
``output``, both text. Calls go out in the order of their timestamps, ``--clients`` at a time; those
that do not fit the context are dropped, and counted. The trace that is written is in tokens, in
the format of Mooncake: a hash for each page of a prompt. Then all of it again without caching.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from served import served

PAGE = 32


class Call:
    """A recorded call, as tokens."""

    def __init__(self, timestamp: int, prompt: list[int], output: int) -> None:
        self.timestamp = timestamp
        self.prompt = prompt
        self.output = output
        self.cached = 0
        self.first_token = 0.0

    def line(self, start: int, numbers: dict[bytes, int]) -> dict[str, Any]:
        """Its line of a trace; ``numbers`` holds those of all pages so far."""
        ids, digest = [], hashlib.sha256()
        for at in range(0, len(self.prompt), PAGE):
            digest.update(repr(self.prompt[at : at + PAGE]).encode())
            ids.append(numbers.setdefault(digest.digest(), len(numbers)))
        return {
            "timestamp": (self.timestamp - start) // 1000,
            "input_length": len(self.prompt),
            "output_length": self.output,
            "hash_ids": ids,
        }


def recorded(folder: Path) -> list[dict[str, Any]]:
    """All calls, in the order of their time."""
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    if not lines:
        raise SystemExit(f"error: {folder} has no calls: it must hold *.jsonl")
    return sorted(lines, key=lambda line: int(line["timestamp"]))


def tokenised(http: httpx.Client, lines: Sequence[dict[str, Any]]) -> tuple[list[Call], int]:
    """The calls that fit the context, and how many do not."""
    calls = []
    for line in lines:
        reply = http.post("/tokenize", json={"prompt": line["input"]}).raise_for_status().json()
        output = http.post("/tokenize", json={"content": line["output"]}).raise_for_status()
        if reply["count"] < reply["max_model_len"]:
            calls.append(Call(line["timestamp"], reply["tokens"], output.json()["count"]))
    return calls, len(lines) - len(calls)


async def replay(url: str, calls: Sequence[Call], clients: int, max_tokens: int) -> None:
    """Send them, in order; each gets its reused tokens and the time of its first token."""
    seats = asyncio.Semaphore(clients)

    async def one(http: httpx.AsyncClient, call: Call) -> None:
        async with seats:
            body = {"prompt": call.prompt, "max_tokens": max_tokens, "temperature": 0}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            start, first, usage = time.perf_counter(), 0.0, None
            async with http.stream("POST", "/v1/completions", json=body) as reply:
                reply.raise_for_status()
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        first = first or time.perf_counter() - start
                        usage = json.loads(line[6:]).get("usage") or usage
            assert usage is not None
            call.first_token = first
            call.cached = usage["prompt_tokens_details"]["cached_tokens"]

    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        await asyncio.gather(*(one(http, call) for call in calls))


def boundless(calls: Sequence[Call]) -> int:
    """Tokens, in whole pages, that an unlimited cache would hold of the prompts."""
    numbers: dict[bytes, int] = {}
    found = 0
    for call in calls:
        before = len(numbers)
        pages = call.line(0, numbers)["hash_ids"]
        full = (len(call.prompt) - 1) // PAGE
        found += PAGE * sum(page < before for page in pages[:full])
    return found


def report(name: str, calls: Sequence[Call]) -> None:
    """One line of figures."""
    total, cached = sum(len(call.prompt) for call in calls), sum(call.cached for call in calls)
    times = sorted(call.first_token for call in calls)
    tail = times[min(len(times) - 1, len(times) * 95 // 100)]
    print(
        f"{name:<16} reused {cached / total:6.1%}   first token "
        f"p50 {1e3 * statistics.median(times):8.1f} ms   p95 {1e3 * tail:8.1f} ms"
    )


def main() -> int:
    """Replay, with caching and without; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="recorded calls, *.jsonl")
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a GGUF file or a name")
    parser.add_argument("--trace", type=Path, help="write the calls here, as tokens")
    parser.add_argument("--kv-cache-memory", default="1GiB")
    parser.add_argument("--calls", type=int, help="only so many, the first ones")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--once", action="store_true", help="not again without caching")
    options = parser.parse_args()
    lines = recorded(options.folder)[: options.calls]
    calls: list[Call] = []
    runs = (("cache", ()), ("no cache", ("--no-enable-prefix-caching",)))
    for name, more in runs[:1] if options.once else runs:
        memory = ("--kv-cache-memory", options.kv_cache_memory)
        with (
            served(options.model, *memory, "--max-queue", "100000", *more) as server,
            httpx.Client(base_url=server.url, timeout=60) as http,
        ):
            if not calls:
                calls, dropped = tokenised(http, lines)
                print(f"{len(calls)} calls, {dropped} dropped: longer than the context")
                share = boundless(calls) / sum(len(call.prompt) for call in calls)
                print(f"{'unlimited cache':<16} reused {share:6.1%}")
                if options.trace is not None:
                    numbers: dict[bytes, int] = {}
                    start = calls[0].timestamp
                    text = [json.dumps(call.line(start, numbers)) + "\n" for call in calls]
                    options.trace.write_text("".join(text), encoding="utf-8")
            asyncio.run(replay(server.url, calls, options.clients, options.max_tokens))
        report(name, calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
