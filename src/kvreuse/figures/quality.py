"""``quality``: what keys and values in fewer bits cost in perplexity, from an evaluation."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from kvreuse.errors import ConfigError
from kvreuse.kv.memory import format_size

from .record import Caption, Captions, Options, Record, machine_facts
from .words import three

NEEDED = ("ppl", "ppl_increase", "kl_mean", "kl_p99", "top1", "bytes_per_token")
"""Numbers of each result that an evaluation writes."""
BASIS = "bf16"


def measure(options: Options) -> Record:
    """Read an evaluation's results. ConfigError where there are none, or they are not such."""
    if options.results is None:
        raise ConfigError(
            "the figure quality is drawn from an evaluation: "
            f"kvreuse eval {options.model} --json > results.json, then add --results results.json"
        )
    where = str(options.results)
    found = _read(options.results.read_text(encoding="utf-8", errors="replace"), where)
    results = [_checked(result, where) for result in found["results"]]
    if BASIS not in {result["kv_cache_dtype"] for result in results}:
        raise ConfigError(f"{where}: has no result for {BASIS}, which the others are compared with")
    results.sort(key=lambda result: -result["bytes_per_token"])
    summary = {_name(result): {key: result[key] for key in NEEDED} for result in results}
    text = found.get("text")
    settings = {"text": text} if isinstance(text, str) else {}
    machine = machine_facts(options.threads)
    model = _stem(str(found["model"]))
    return Record("quality", model, machine, settings, {"results": results}, summary)


def _read(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{where} is not JSON: it must be what kvreuse eval --json writes"
        ) from None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list) or not results or not isinstance(found.get("model"), str):
        raise ConfigError(f"{where} has no results of kvreuse eval --json")
    return dict(found)


def _checked(result: Any, where: str) -> dict[str, Any]:
    """A result with a name and finite numbers. ConfigError for anything else."""
    if not isinstance(result, dict) or not isinstance(result.get("kv_cache_dtype"), str):
        raise ConfigError(f"{where}: a result has no kv_cache_dtype")
    for key in NEEDED:
        value = result.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            raise ConfigError(f"{where}: {result['kv_cache_dtype']} has no number {key!r}")
    transform = result.get("transform")
    return {**result, "transform": transform if isinstance(transform, str) else ""}


def _name(result: dict[str, Any]) -> str:
    """The codec, with the transform where there is one: ``int4 (rotated)``."""
    transform = result["transform"]
    plain = transform in ("", "none")
    return result["kv_cache_dtype"] if plain else f"{result['kv_cache_dtype']} ({transform})"


def _stem(model: str) -> str:
    return model.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")


def captions(record: Record) -> Captions:
    """What the picture says, with the numbers of ``record``."""
    summary = record.summary
    basis = summary[BASIS]
    ppl = three(basis["ppl"])
    others = {name: entry for name, entry in summary.items() if name != BASIS}
    words = "; ".join(
        f"{name} {format_size(int(entry['bytes_per_token']))}, {increase(entry)}"
        for name, entry in others.items()
    )
    size = format_size(int(basis["bytes_per_token"]))
    text = (
        f"{record.model}: perplexity of a text with keys and values in each codec, over that in "
        f"{BASIS} ({ppl} at {size} a token). A token takes, and perplexity rises by: {words}. "
        f"Right: the mean KL divergence of the next token's distribution from that of {BASIS}."
    )
    zh = (
        f"{record.model}：KV 缓存采用各种编码时的困惑度，相对于 {BASIS}（每个 token {size}，困惑度 "
        f"{ppl}）。每个 token 的大小与困惑度的增幅："
        f"{words.replace('; ', '；').replace(', ', '，')}。"
        f"右图是下一个 token 的分布相对 {BASIS} 的平均 KL 散度。"
    )
    best = min(others.values(), key=lambda entry: abs(entry["ppl_increase"]), default=basis)
    ratio = f"{best['bytes_per_token'] / basis['bytes_per_token']:.0%}"
    name = next((key for key, entry in others.items() if entry is best), BASIS)
    return Captions(
        Caption(f"{name}: {ratio} of the bytes, {increase(best)} in perplexity", text),
        Caption(f"{name}：字节数为 {ratio}，困惑度 {increase(best)}", zh),
    )


def increase(entry: dict[str, Any]) -> str:
    """The rise of perplexity as a signed percentage: ``+0.34%``."""
    return f"{entry['ppl_increase']:+.2%}"
