"""``pool``: arrays that grow by concatenation for each token, against pages taken at the start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from typing import Any

from kvreuse.kv.layout import KVLayout
from kvreuse.sizes import format_size
from kvreuse.study.figures.holders import HOLDERS, row_of, sizes_of
from kvreuse.study.figures.record import Caption, Captions, Options, Record, machine_facts
from kvreuse.study.figures.running import layout_of, medians, repeated
from kvreuse.study.figures.words import duration, factor, medians_of, medians_of_zh, percent

TOKENS = 1024
SLOTS, ROUNDS = 8, 800
"""The load whose resident memory is measured: sequences at once, tokens appended to each."""
WASTES = {"concatenation": "resident_bytes", "pool": "taken_bytes"}
"""What is lost to whom: what the system keeps for arrays, what lies unused in pages taken."""
STRIDE = 16
"""Tokens whose median append is one point of the picture."""


def measure(options: Options) -> Record:
    """Time of every append; the most that one takes; resident memory under a changing load."""
    tokens = options.tokens or TOKENS
    layout, _ = layout_of(options.model)
    rounds = min(ROUNDS, 4 * tokens)
    total = options.repeats * tokens
    done = 0

    def run() -> dict[str, list[float]]:
        nonlocal done
        taken = _times(layout, tokens)
        done += tokens
        options.say(done, total + 1)
        return taken

    runs = repeated(run, options)
    seconds = {name: medians([run[name] for run in runs]) for name in HOLDERS}
    loads = {name: _load(name, layout, tokens // 2, rounds) for name in HOLDERS}
    data: dict[str, Any] = {
        "tokens": list(range(STRIDE, tokens + 1, STRIDE)),
        "seconds": {name: _strided(values) for name, values in seconds.items()},
        "peak": {name: _peak(name, layout, tokens) for name in HOLDERS},
        "load": loads,
    }
    summary: dict[str, Any] = {
        name: {
            "seconds": statistics.median(sum(run[name]) for run in runs),
            "last_seconds": data["seconds"][name][-1],
            "peak_bytes": data["peak"][name],
            "peak_resident_bytes": max(loads[name]["resident_bytes"]),
            "empty_share": _empty_share(loads[name]["live_bytes"], loads[name][memory]),
        }
        for name, memory in WASTES.items()
    }
    reserved = SLOTS * (tokens // 2) * layout.bytes_per_token  # room for the longest, for each
    live = loads["pool"]["live_bytes"]
    summary["reserved"] = {"bytes": reserved, "empty_share": _empty_share(live, [reserved])}
    summary["live_bytes"] = tokens * layout.bytes_per_token
    summary["factor"] = summary["concatenation"]["seconds"] / summary["pool"]["seconds"]
    settings = {
        "tokens": tokens,
        "repeats": len(runs),
        "stride": STRIDE,
        "load": {"sequences": SLOTS, "rounds": rounds, "longest": tokens // 2},
    }
    return Record(
        "pool", options.model_name, machine_facts(options.threads), settings, data, summary
    )


def _times(layout: KVLayout, tokens: int) -> dict[str, list[float]]:
    """Seconds of every append to a sequence, both ways in turn."""
    holders = {name: make(layout, tokens) for name, make in HOLDERS.items()}
    sequences = {name: holder.open() for name, holder in holders.items()}
    row = row_of(layout)
    taken: dict[str, list[float]] = {name: [] for name in holders}
    for _ in range(tokens):
        for name, holder in holders.items():
            start = time.perf_counter()
            holder.append(sequences[name], row)
            taken[name].append(time.perf_counter() - start)
    return taken


def _peak(name: str, layout: KVLayout, tokens: int) -> int:
    """The most bytes that are taken at once while one sequence grows to ``tokens``."""
    tracemalloc.start()
    try:
        holder = HOLDERS[name](layout, tokens)
        sequence, row = holder.open(), row_of(layout)
        for _ in range(tokens):
            holder.append(sequence, row)
        return tracemalloc.get_traced_memory()[1] + holder.mapped_bytes
    finally:
        tracemalloc.stop()


def _load(name: str, layout: KVLayout, longest: int, rounds: int) -> dict[str, list[int]]:
    """The load in a process of its own, whose resident memory is nobody else's."""
    uniform = [*sizes_of(layout), layout.page_size]
    wanted = json.dumps(
        {"holder": name, "layout": uniform, "slots": SLOTS, "longest": longest, "rounds": rounds}
    )
    command = [sys.executable, "-m", "kvreuse.study.figures.pool_load", wanted]
    result = subprocess.run(command, capture_output=True, check=True)
    found: dict[str, list[int]] = json.loads(result.stdout)
    return found


def _strided(values: list[float]) -> list[float]:
    """The median of every ``STRIDE`` values."""
    starts = range(0, len(values) - STRIDE + 1, STRIDE)
    return [statistics.median(values[start : start + STRIDE]) for start in starts]


def _empty_share(live: list[int], memory: list[int]) -> float:
    """The part of ``memory`` that holds no token: the mean over the second half of the load.

    ``memory`` of one entry stays what it is.
    """
    half = len(live) // 2
    held = memory * len(live) if len(memory) == 1 else memory
    pairs = zip(live[half:], held[half:], strict=True)
    return statistics.mean(1 - tokens / nbytes for tokens, nbytes in pairs)


def captions(record: Record) -> Captions:
    """What the picture says, with the numbers of ``record``."""
    summary, settings = record.summary, record.settings
    grow, pool = summary["concatenation"], summary["pool"]
    by, tokens, load = factor(summary["factor"]), settings["tokens"], settings["load"]
    slow, quick = duration(grow["seconds"]), duration(pool["seconds"])
    last, flat = duration(grow["last_seconds"]), duration(pool["last_seconds"])
    peaks = [format_size(int(entry["peak_bytes"])) for entry in (grow, pool)]
    resident = [format_size(entry["peak_resident_bytes"]) for entry in (grow, pool)]
    empty = [percent(entry["empty_share"]) for entry in (grow, pool)]
    live, kept = format_size(summary["live_bytes"]), summary["reserved"]
    whole, unused = format_size(kept["bytes"]), percent(kept["empty_share"])
    text = (
        f"NumPy arrays shaped as the keys and values of {record.model}, "
        f"{medians_of(settings['repeats'])}. Left: one sequence grows to {tokens:,} tokens "
        f"({live}). By concatenation all is copied for each token: {slow}, {last} for the last "
        f"one; in pages {quick} and {flat}. The most taken at once: {peaks[0]} and {peaks[1]}. "
        f"Right: {load['sequences']} sequences that come and go, up to {load['longest']:,} tokens. "
        f"Of what the system keeps for joined arrays {empty[0]} hold no token on average, of the "
        f"pages in use {empty[1]}; room for the longest, reserved for each ({whole}), would be "
        f"{unused} empty. Pages given back stay resident for the next sequence: {resident[1]} "
        f"at the peak, and {resident[0]} with arrays."
    )
    zh = (
        f"用 NumPy 数组模拟 {record.model} 的 key 和 value，{medians_of_zh(settings['repeats'])}。"
        f"左：一条序列增长到 {tokens:,} 个 token（{live}）。逐 token 拼接每次都要复制全部数据，"
        f"合计 {slow}，最后一个 token 用 {last}；写入页则合计 {quick}，最后一个用 {flat}。"
        f"同时占用的峰值：拼接 {peaks[0]}，页 {peaks[1]}。右：{load['sequences']} 条序列不断结束和"
        f"加入，最长 {load['longest']:,} 个 token。拼接数组占用的常驻内存平均有 {empty[0]} "
        f"没有存放 token；正在使用的页中这一比例为 {empty[1]}；"
        f"若按最大长度为每条序列连续预留（{whole}），则为 {unused}。"
        f"归还的页仍留在池中给下一条序列用，所以常驻内存峰值为页 {resident[1]}、"
        f"拼接 {resident[0]}。"
    )
    return Captions(
        Caption(f"Appending {tokens:,} tokens: {slow} by concatenation, {quick} in pages", text),
        Caption(f"追加 {tokens:,} 个 token：逐个拼接 {slow}，预分配页池 {quick}，相差 {by} 倍", zh),
    )
