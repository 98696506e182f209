"""``prefix``: requests that start alike, with and without prefix caching."""

from __future__ import annotations

import statistics
from typing import Any

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import RequestOutput
from kvreuse.llm import LLM
from kvreuse.sizes import format_size
from kvreuse.study.figures.record import Caption, Captions, Options, Record, machine_facts
from kvreuse.study.figures.running import (
    engine,
    greedy,
    held_pages,
    medians,
    random_tokens,
    repeated,
)
from kvreuse.study.figures.words import duration, factor, medians_of, medians_of_zh

TOKENS = 512
REQUESTS = 8
ANSWER = 8
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
WAYS = ("with", "without")
TOLD = 0.75
"""The share whose factor the caption says."""


def measure(options: Options) -> Record:
    """Serve ``REQUESTS`` prompts at once, a share of each the same for all and served before."""
    tokens = options.tokens or TOKENS
    length = tokens + ANSWER
    with (
        engine(options, length, REQUESTS + 1) as caching,
        engine(options, length, REQUESTS + 1, enable_prefix_caching=False) as plain,
    ):
        llms = dict(zip(WAYS, (caching, plain), strict=True))
        num_runs, done = 0, 0

        def run() -> dict[str, list[dict[str, float]]]:
            nonlocal num_runs, done
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for share in SHARES:
                head, prompts = _prompts(share, tokens, num_runs, caching.shape.vocab_size)
                for way, llm in llms.items():
                    found[way].append(_serve(llm, head, prompts))
                done += 1
                options.say(done, options.repeats * len(SHARES))
            num_runs += 1
            return found

        runs = repeated(run, options)
    data: dict[str, Any] = {"shares": list(SHARES)}
    for way in WAYS:
        data[way] = {
            key: medians([[point[key] for point in run[way]] for run in runs])
            for key in ("first_token_seconds", "held_bytes", "prefilled_tokens")
        }
    settings = {"tokens": tokens, "requests": REQUESTS, "answer": ANSWER, "repeats": num_runs}
    return Record(
        "prefix",
        options.model_name,
        machine_facts(options.threads),
        settings,
        data,
        _summary(data),
    )


def _prompts(share: float, tokens: int, run: int, vocab_size: int) -> tuple[list[int], list[Any]]:
    """The shared head, and prompts that start with it; tokens that no other run has."""
    common = round(share * tokens)
    head = random_tokens((run, round(share * 100), 0), common, vocab_size)
    rest = tokens - common
    return head, [
        head + random_tokens((run, round(share * 100), index), rest, vocab_size)
        for index in range(1, REQUESTS + 1)
    ]


def _serve(llm: LLM, head: list[int], prompts: list[list[int]]) -> dict[str, float]:
    """Mean seconds to the first token, the most bytes held at once, prompt tokens computed."""
    if head:
        llm.generate([head], greedy(1))  # somebody asked something of the kind before
    engine, before = llm.engine, llm.engine.counters.computed_tokens
    for prompt in prompts:
        engine.submit(Ask(prompt, greedy(ANSWER)))
    outputs: list[RequestOutput] = []
    held = 0
    while len(outputs) < len(prompts):
        deltas = engine.step()
        held = max(held, held_pages(llm))
        outputs += [delta.output for delta in deltas if delta.output is not None]
    first = [output.metrics.time_to_first_token or 0.0 for output in outputs]
    computed = engine.counters.computed_tokens - before - len(prompts) * (ANSWER - 1)
    return {
        "first_token_seconds": statistics.mean(first),
        "held_bytes": held * llm.pool.layout.page_bytes,
        "prefilled_tokens": computed,
    }


def _summary(data: dict[str, Any]) -> dict[str, Any]:
    """The factors at the share that the caption tells, and at none: what caching costs there."""
    factors = {
        key: [off / on for on, off in zip(data["with"][key], data["without"][key], strict=True)]
        for key in ("first_token_seconds", "held_bytes", "prefilled_tokens")
    }
    at = SHARES.index(TOLD)
    return {
        "share": TOLD,
        "first_token_factor": factors["first_token_seconds"][at],
        "held_factor": factors["held_bytes"][at],
        "prefilled_factor": factors["prefilled_tokens"][at],
        "first_token_factor_unshared": factors["first_token_seconds"][0],
    }


def captions(record: Record) -> Captions:
    """What the picture says, with the numbers of ``record``."""
    summary, settings, data = record.summary, record.settings, record.data
    share = f"{summary['share']:.0%}"
    at = data["shares"].index(summary["share"])
    on, off = (duration(data[way]["first_token_seconds"][at]) for way in WAYS)
    small, large = (format_size(int(data[way]["held_bytes"][at])) for way in WAYS)
    sooner, less = factor(summary["first_token_factor"]), factor(summary["held_factor"])
    fewer = factor(summary["prefilled_factor"])
    count, tokens = settings["requests"], settings["tokens"]
    nothing = f"{summary['first_token_factor_unshared']:.2f}"
    text = (
        f"{record.model}, {count} requests at once of {tokens:,} tokens each, that start with the "
        f"same tokens, which were served once before; {medians_of(settings['repeats'])}. Where "
        f"{share} are shared, first tokens come after {on} instead of {off} on average, {sooner} "
        f"times sooner ({fewer} times fewer tokens are computed), and all requests together hold "
        f"{small} instead of {large}, {less} times less. Where nothing is shared the factor of "
        f"time is {nothing}."
    )
    zh = (
        f"{record.model}，同时到达 {count} 个请求，每个 {tokens:,} 个 token，开头部分相同，且该前缀"
        f"此前已被计算过一次；{medians_of_zh(settings['repeats'])}。共享比例为 {share} 时，"
        f"平均首 token 延迟从 {off} 降到 {on}，为原来的 1/{sooner}"
        f"（需要计算的 token 为 1/{fewer}）；"
        f"所有请求合计占用的内存从 {large} 降到 {small}，为 1/{less}。"
        f"完全没有共享时，关闭与开启前缀缓存的时间之比为 {nothing}。"
    )
    return Captions(
        Caption(f"{share} of the prompt shared: first token {sooner} times sooner", text),
        Caption(f"提示词共享 {share} 时，首 token 延迟降为 1/{sooner}", zh),
    )
