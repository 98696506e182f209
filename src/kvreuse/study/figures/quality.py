"""``quality``: what keys and values in fewer bits cost in perplexity, from an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

from kvreuse.config import EngineConfig
from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.model.fetch.source import resolve
from kvreuse.sizes import format_size
from kvreuse.study.figures.record import Caption, Captions, Options, Record, machine_facts
from kvreuse.study.figures.words import three
from kvreuse.study.quality.evaluate import codecs_of, evaluate
from kvreuse.study.quality.subject import Subject
from kvreuse.study.quality.texts import standard_text, windows_of

NEEDED = ("ppl", "ppl_increase", "kl_mean", "kl_p99", "top1", "bytes_per_token")
"""Numbers of each result that an evaluation writes."""
BASIS = "bf16"
TOKENS, WINDOWS = 1024, 4
"""Tokens of a window of the text, and windows, where the figure evaluates by itself."""


def measure(options: Options) -> Record:
    """Evaluate the codecs, or read the results of ``kvreuse eval --json``.

    ConfigError for a file that holds none.
    """
    if options.results is None:
        where, found = "the evaluation", _evaluate(options)
    else:
        where = str(options.results)
        found = _read(options.results.read_text(encoding="utf-8", errors="replace"), where)
    results = [_checked(result, where) for result in found["results"]]
    if BASIS not in {result["kv_cache_dtype"] for result in results}:
        raise ConfigError(f"{where}: has no result for {BASIS}, which the others are compared with")
    results.sort(key=lambda result: -result["bytes_per_token"])
    summary = {
        name: {key: result[key] for key in NEEDED}
        for name, result in zip(_names(results), results, strict=True)
    }
    settings: dict[str, Any] = {
        key: found[key] for key in ("text", "context", "windows") if key in found
    }
    machine = machine_facts(options.threads)
    model = _stem(str(found["model"]))
    return Record("quality", model, machine, settings, {"results": results}, summary)


def _evaluate(options: Options) -> dict[str, Any]:
    """What ``kvreuse eval --json`` would write of a few windows of the standard text."""
    config = EngineConfig(model=options.model, threads=options.threads)
    subject = Subject.load(resolve(options.model), config)
    context = min(options.tokens or TOKENS, subject.shape.context_length)
    text = standard_text()
    windows = windows_of(text, subject.tokenizer, context, WINDOWS)
    results = evaluate(subject, codecs_of(subject, list(UNIFORM), None), windows, options.progress)
    return {
        "model": options.model_name,
        "text": text.name,
        "context": context,
        "windows": len(windows),
        "results": [result.as_json() for result in results],
    }


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


def _names(results: Sequence[dict[str, Any]]) -> list[str]:
    """The codecs, with the transform where there are two of a kind: ``int4 (Hadamard)``."""
    codecs = [str(result["kv_cache_dtype"]) for result in results]
    return [
        f"{codec} ({result['transform'] or 'no transform'})" if codecs.count(codec) > 1 else codec
        for codec, result in zip(codecs, results, strict=True)
    ]


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
    what, zh_what = _read_text(record.settings)
    text = (
        f"{record.model}: perplexity of {what} with keys and values in each codec, over that in "
        f"{BASIS} ({ppl} at {size} a token). A token takes, and perplexity rises by: {words}. "
        f"Right: the mean KL divergence of the next token's distribution from that of {BASIS}."
    )
    zh = (
        f"{record.model} 在{zh_what}上的困惑度：KV 缓存采用各种编码，与 {BASIS} 相比（每个 token "
        f"{size}，困惑度 {ppl}）。每个 token 的大小与困惑度的变化："
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


def _read_text(settings: dict[str, Any]) -> tuple[str, str]:
    """What was read, in both languages, as far as the evaluation says it."""
    if set(settings) != {"text", "context", "windows"}:
        return "a text", "一段文本"
    text, context, windows = (settings[key] for key in ("text", "context", "windows"))
    return (
        f"{windows} x {context:,} tokens of {text}",
        f" {text} 的 {windows} 段、每段 {context:,} 个 token ",
    )


def increase(entry: dict[str, Any]) -> str:
    """The rise of perplexity as a signed percentage: ``+0.34%``."""
    return f"{entry['ppl_increase']:+.2%}"
