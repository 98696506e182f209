"""Many streaming clients for minutes, of which some go away at any moment.

    python bench/soak.py [MODEL] [--seconds 180] [--clients 64] [--kv-cache-memory 192MiB]

Fails unless every client that stays gets the answer that its prompt gets alone, in a process
without prefix caching; no page is in use at the end; and the server's memory does not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter

import httpx

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.llm import LLM
from served import Served, served

PROMPTS = 96
GONE = 1 / 3
GROWTH = 24 << 20
"""Bytes that the server's memory may grow in the second half."""
WORDS = [
    *("the", "sea", "old", "harbour", "rain", "letter", "captain"),
    *("garden", "winter", "road", "clock", "river", "stone", "light"),
]


class Prompt:
    """One of the prompts: of a shared start, some words of its own, and a way to sample."""

    def __init__(self, number: int) -> None:
        source = random.Random(number)
        shared = random.Random(number % 7)
        head = " ".join(shared.choices(WORDS, k=120))
        own = " ".join(source.choices(WORDS, k=source.randint(1, 200)))
        self.text = f"Story {number % 7}. {head}. Chapter {number}. {own}"
        self.max_tokens = source.randint(1, 120)
        self.temperature = source.choice((0.0, 0.0, 1.0))
        self.seed = number
        self.chat = number % 2 == 0
        self.salt = source.choice((None, None, "tenant"))

    def body(self) -> tuple[str, dict[str, object]]:
        """Path and body of a streaming request."""
        body: dict[str, object] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.salt is not None:
            body["cache_salt"] = self.salt
        if self.chat:
            messages = [{"role": "user", "content": self.text}]
            return "/v1/chat/completions", {**body, "messages": messages}
        return "/v1/completions", {**body, "prompt": self.text}

    def alone(self, llm: LLM) -> str:
        """Its answer by an engine that serves nothing else."""
        params = SamplingParams(
            temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens
        )
        if self.chat:
            [output] = llm.chat([{"role": "user", "content": self.text}], params)
        else:
            [output] = llm.generate(self.text, params)
        return output.outputs[0].text


class Soak:
    """The clients, and the answers that they got."""

    def __init__(self, server: Served, seconds: float) -> None:
        self.server = server
        self.end = time.monotonic() + seconds
        self.prompts = [Prompt(number) for number in range(PROMPTS)]
        self.answers: list[set[str]] = [set() for _ in self.prompts]
        self.seen: Counter[str] = Counter()

    async def client(self, http: httpx.AsyncClient, number: int) -> None:
        """One client: requests, one after the other, until the time is over."""
        source = random.Random(1000 + number)
        while time.monotonic() < self.end:
            which = source.randrange(PROMPTS)
            patience = source.uniform(0, 3) if source.random() < GONE else None
            try:
                answer = await asyncio.wait_for(self.ask(http, self.prompts[which]), patience)
            except asyncio.TimeoutError:
                self.seen["gone"] += 1
            except httpx.HTTPError as error:
                self.seen[f"failed: {type(error).__name__}"] += 1
            else:
                self.seen["answered"] += 1
                self.answers[which].add(answer)

    async def ask(self, http: httpx.AsyncClient, prompt: Prompt) -> str:
        """The text of a whole stream."""
        path, body = prompt.body()
        text, last = "", ""
        async with http.stream("POST", path, json=body) as reply:
            if reply.status_code != 200:
                self.seen[f"failed: status {reply.status_code}"] += 1
                reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    for choice in event["choices"]:
                        text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                last = line or last
        if last != "data: [DONE]":
            self.seen["failed: cut short"] += 1
        return text

    async def run(self, clients: int) -> list[int]:
        """All clients; the memory of the server, once a second."""
        resident: list[int] = []
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120, limits=limits) as http:
            tasks = [asyncio.create_task(self.client(http, at)) for at in range(clients)]
            while any(not task.done() for task in tasks):
                await asyncio.sleep(1)
                resident.append(self.server.resident)
            await asyncio.gather(*tasks)
        return resident


def wrong(soak: Soak, llm: LLM) -> int:
    """How many prompts got another answer than they get alone."""
    count = 0
    for prompt, answers in zip(soak.prompts, soak.answers, strict=True):
        if answers and answers != {prompt.alone(llm)}:
            count += 1
    return count


def main() -> int:
    """Run and judge; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a GGUF file or a name")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kv-cache-memory", default="192MiB")
    options = parser.parse_args()
    flags = ("--kv-cache-memory", options.kv_cache_memory, "--max-model-len", "2048")
    with served(options.model, *flags, "--max-queue", "1000") as server:
        soak = Soak(server, options.seconds)
        resident = asyncio.run(soak.run(options.clients))
        time.sleep(2)
        cache, health = server.get("/v1/cache").json(), server.get("/health").json()
    grown = max(resident[len(resident) // 2 :]) - resident[len(resident) // 2]
    with LLM(options.model, enable_prefix_caching=False, kv_cache_memory="128MiB") as llm:
        others = wrong(soak, llm)
    failed = sum(count for what, count in soak.seen.items() if what.startswith("failed"))
    asked, used = sum(map(bool, soak.answers)), cache["pool"]["used_pages"]
    print(f"{options.clients} clients, {options.seconds:.0f} s: {dict(soak.seen)}")
    print(f"{asked} of {PROMPTS} prompts answered; {others} of them not as alone")
    print(f"pages in use at the end: {used}; health: {health['status']}")
    print(f"memory: {resident[-1] / 2**20:.0f} MiB, {grown / 2**20:+.1f} in the second half")
    print(f"reused: {cache['hit_rate']:.1%}; evicted pages: {cache['evicted_pages']:,}")
    holds = not (failed or others or used or grown > GROWTH or health["running"])
    print("it holds" if holds and asked else "IT DOES NOT HOLD")
    return 0 if holds and asked else 1


if __name__ == "__main__":
    sys.exit(main())
