"""``memory``: what keys and values take, by length, batch and codec; planned, and as resident."""

from __future__ import annotations

from typing import Any

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.memory import MemoryPlan
from kvreuse.plan.report import Wish, plan_of
from kvreuse.plan.source import find_model
from kvreuse.sizes import format_size
from kvreuse.study.figures.record import Caption, Captions, Options, Record, machine_facts
from kvreuse.study.figures.running import layout_of, resident_bytes

BATCHES = (1, 16, 256)
SHORTEST = 64
MEASURED_TOKENS = 512
"""Resident memory is measured from this length on: shorter ones drown in the system's own pages."""


def measure(options: Options) -> Record:
    """Plan every codec and batch over lengths; fill pools of real pages and ask the system."""
    machine = machine_facts(options.threads)
    backend = NativeBackend(threads=machine["threads"])
    model = find_model(options.model, backend)
    layout, limit = layout_of(options.model)
    longest = options.tokens or limit
    if not 2 * SHORTEST <= longest <= limit:
        raise ConfigError(f"--tokens must be from {2 * SHORTEST} to {limit:,}, got {longest:,}")
    wish = Wish(machine["memory_available"], backend)
    plans = {codec: plan_of(model, wish, codec) for codec in UNIFORM}
    lengths = _lengths(longest)
    planned = {
        codec: {str(n): [plan.kv_bytes(length, n) for length in lengths] for n in BATCHES}
        for codec, plan in plans.items()
    }
    data = {
        "tokens": lengths,
        "planned_bytes": planned,
        "resident": _resident(layout, [n for n in lengths if n >= MEASURED_TOKENS], options),
        "weight_bytes": model.weight_bytes,
        "limit_bytes": wish.memory,
    }
    summary = {codec: _fits(plan, wish.memory) for codec, plan in plans.items()}
    settings = {"tokens": longest, "batches": list(BATCHES), "page_size": layout.page_size}
    return Record("memory", options.model_name, machine, settings, data, summary)


def _lengths(longest: int) -> list[int]:
    """Powers of two up to ``longest``, and it."""
    powers = (1 << power for power in range(longest.bit_length()))
    return sorted({*(n for n in powers if SHORTEST <= n <= longest), longest})


def _resident(layout: KVLayout, lengths: list[int], options: Options) -> dict[str, list[int]]:
    """Bytes that the process grows by where the pages of one sequence are written, in bf16."""
    grown = []
    for done, length in enumerate(lengths, 1):
        pool = PagePool(layout, layout.pages_for(length))
        before = resident_bytes()
        pool.data.fill(1)
        grown.append(resident_bytes() - before)
        pool.close()
        options.say(done, len(lengths))
    return {"tokens": lengths, "bytes": grown}


def _fits(plan: MemoryPlan, memory: int) -> dict[str, Any]:
    """Bytes a token, and the longest context that fits, by batch."""
    return {
        "bytes_per_token": plan.kv.token_bytes,
        "largest_context": {str(n): plan.largest_context(memory, n) for n in BATCHES},
    }


def captions(record: Record) -> Captions:
    """What the picture says, with the numbers of ``record``."""
    most, longest = record.settings["batches"][-1], record.settings["tokens"]
    limit = format_size(record.data["limit_bytes"])
    weights = format_size(record.data["weight_bytes"])
    sizes = {
        codec: format_size(entry["bytes_per_token"]) for codec, entry in record.summary.items()
    }
    tokens = ", ".join(f"{size} in {codec}" for codec, size in sizes.items())
    fits = {codec: entry["largest_context"][str(most)] for codec, entry in record.summary.items()}
    full = record.data["planned_bytes"]["bf16"][str(most)][-1]
    longest_fits = ", ".join(f"{count:,} in {codec}" for codec, count in fits.items())
    text = (
        f"Keys and values of {record.model}, as kvreuse plan says: a token takes {tokens}. Dots: "
        f"what the system counts as resident once the pages of one sequence in bf16 are written. "
        f"Dashed: the {limit} that this machine had available; dotted: the weights, {weights}. "
        f"With weights and buffers, {most} sequences can be this long here: {longest_fits} tokens."
    )
    zh_tokens = "，".join(f"{codec} 为 {size}" for codec, size in sizes.items())
    zh_fits = "，".join(f"{codec} 为 {count:,}" for codec, count in fits.items())
    zh = (
        f"{record.model} 的 KV 缓存大小，由 kvreuse plan 算出。每个 token 占用：{zh_tokens}。"
        f"圆点：bf16 下写满一条序列的页之后，系统实际计入的常驻内存。"
        f"虚线：这台机器当时可用的内存 {limit}；点线：模型权重 {weights}。"
        f"连同权重和缓冲区在内，这台机器上 {most} 条序列并行时，"
        f"每条最长可到（token 数）：{zh_fits}。"
    )
    title = f"{most} sequences of {longest:,} tokens: {format_size(full)} of keys and values"
    return Captions(
        Caption(f"{title}, {weights} of weights", text),
        Caption(
            f"{most} 条 {longest:,} token 的序列：KV 缓存 {format_size(full)}，权重 {weights}", zh
        ),
    )
