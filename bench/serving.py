"""What HTTP costs on top of the engine.

    python bench/serving.py [MODEL] [--threads N] [--repeats 5] [--json]

The same work through ``LLM.generate`` and through a server in a process of its own, in turn. Every
prompt is of its own run, but for what a case shares. Each figure is the median of the repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import KVReuseError
from kvreuse.llm import LLM
from served import served

Figures = dict[str, float]
SHARED, OWN, OUT = 1024, 32, 64
WARM_PAIRS = 9
WARM = 1900


class Bench:
    """One model in this process, and one behind HTTP."""

    def __init__(self, llm: LLM, http: httpx.Client) -> None:
        self.llm = llm
        self.http = http
        self._random = np.random.default_rng(0)

    def tokens(self, count: int) -> list[int]:
        """Tokens that no other prompt has."""
        drawn: list[int] = self._random.integers(1, self.llm.shape.vocab_size, count).tolist()
        return drawn

    def shared(self) -> Figures:
        """32 requests at once: 1,024 shared tokens and 32 of their own, 64 out."""
        seconds = {}
        for name in ("engine", "HTTP"):
            head = self.tokens(SHARED)
            prompts = [head + self.tokens(OWN) for _ in range(32)]
            start = time.perf_counter()
            if name == "engine":
                params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=OUT)
                self.llm.generate(prompts, params)
            else:
                asyncio.run(self._post(prompts))
            seconds[name] = time.perf_counter() - start
        overhead = 100 * (seconds["HTTP"] / seconds["engine"] - 1)
        return {f"{name}, s": value for name, value in seconds.items()} | {"overhead, %": overhead}

    def warm(self) -> Figures:
        """A prompt of 1,900 tokens as text, asked again: milliseconds to its first token."""
        text = self.llm.tokenizer.decode(self.tokens(WARM))
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)
        ways: dict[str, Callable[[], float]] = {
            "engine": lambda: self._engine(text, params),
            "HTTP": lambda: self._http(text),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(1 + WARM_PAIRS):
            for name, first_token in ways.items():
                times[name].append(first_token())
        figures = {f"{name}, ms": 1e3 * statistics.median(times[name][1:]) for name in ways}
        return figures | {"HTTP adds, ms": figures["HTTP, ms"] - figures["engine, ms"]}

    def _engine(self, text: str, params: SamplingParams) -> float:
        """Seconds to the first token of a prompt, by itself."""
        start = time.perf_counter()
        stream = self.llm.stream(text, params)
        next(stream)
        seconds = time.perf_counter() - start
        stream.close()
        return seconds

    async def _post(self, prompts: list[list[int]]) -> None:
        async with httpx.AsyncClient(base_url=self.http.base_url, timeout=300) as http:

            async def one(prompt: list[int]) -> None:
                reply = await http.post("/v1/completions", json=_body(prompt, OUT))
                reply.raise_for_status()

            await asyncio.gather(*map(one, prompts))

    def _http(self, text: str) -> float:
        """The same over HTTP."""
        start = time.perf_counter()
        body = {**_body(text, 4), "stream": True}
        with self.http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            seconds = time.perf_counter() - start
            for _ in lines:
                pass
        return seconds


def _body(prompt: Any, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens}


def measure(model: str, threads: int | None, repeats: int) -> dict[str, Figures]:
    """Medians of every figure of both cases, after a round that does not count."""
    more = () if threads is None else ("--threads", str(threads))
    flags = ("--kv-cache-memory", "512MiB", "--max-model-len", "4096", *more)
    options: dict[str, Any] = {"kv_cache_memory": "512MiB", "max_model_len": 4096}
    runs: dict[str, list[Figures]] = {}
    with (
        LLM(model, threads=threads, **options) as llm,
        served(model, *flags) as server,
        httpx.Client(base_url=server.url, timeout=300) as http,
    ):
        bench = Bench(llm, http)
        for repeat in range(repeats + 1):
            for case in (bench.shared, bench.warm):
                figures = case()
                if repeat:
                    runs.setdefault(case.__doc__ or "", []).append(figures)
    return {
        name: {key: statistics.median(run[key] for run in every) for key in every[0]}
        for name, every in runs.items()
    }


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a GGUF file or a name")
    parser.add_argument("--threads", type=int, help="default: the cores of this process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        results = measure(options.model, options.threads, options.repeats)
    except KVReuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(results, indent=2))
        return 0
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:<32}{value:>12,.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
