"""``kvreuse eval``: what fewer bits for keys and values do to a model's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text as Words

from kvreuse.cli import text
from kvreuse.cli.flags import with_flags
from kvreuse.cli.measuring import MACHINE, subject_of, text_of
from kvreuse.cli.progress import progress
from kvreuse.cli.tables import show_table
from kvreuse.errors import ConfigError
from kvreuse.sizes import format_size

if TYPE_CHECKING:
    from kvreuse.study.quality.evaluate import Result


@with_flags(MACHINE)
def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that pull knows.")
    ],
    *,
    text_file: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="UTF-8 text to read; left out: the help topics that Python brings along.",
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(metavar="LIST", help="Codecs to compare with bf16, with commas between them."),
    ] = "bf16,int8,k8v4,int4",
    context: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens of a window, at most the model's.")
    ] = 2048,
    windows: Annotated[int, typer.Option(metavar="N", help="Windows, from the text's start.")] = 16,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Left out: what kvreuse calibrate left, if anything."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
    machine: dict[str, Any],
) -> None:
    """Compare codecs of keys and values: perplexity, divergence from bf16, bytes, decode speed.

    Results are the same every time, but for the speed. One row is always the naive recipe: rounding
    without any transform.

    \b
      kvreuse eval smollm2-135m --text book.txt
      kvreuse eval smollm2-135m --kv-cache-dtype bf16,int8,int4,k8v4,auto --windows 16
      kvreuse eval smollm2-135m --text book.txt --json | jq '.results[].ppl'
    """
    for flag, value, least in (("--context", context, 2), ("--windows", windows, 1)):
        if value < least:
            raise ConfigError(f"{flag} must be at least {least}, got {value}")
    names = [name.strip() for name in kv_cache_dtype.split(",") if name.strip()]
    content = text_of(text_file)
    from kvreuse.study.quality.evaluate import codecs_of  # noqa: PLC0415
    from kvreuse.study.quality.evaluate import evaluate as measure  # noqa: PLC0415
    from kvreuse.study.quality.texts import windows_of  # noqa: PLC0415

    subject = subject_of(model, machine)
    codecs = codecs_of(subject, names, calibration)
    parts = windows_of(
        content, subject.tokenizer, min(context, subject.shape.context_length), windows
    )
    with progress("Reading") as report:
        results = measure(subject, codecs, parts, report)
    tokens = sum(len(part) for part in parts)
    where = {"text": content.name, "context": len(parts[0]), "windows": len(parts)}
    if as_json:
        out = {"model": model, **where, "results": [result.as_json() for result in results]}
        text.write_out(json.dumps(out) + "\n")
        return
    console = text.stdout()
    console.print(
        Words(
            f"{content.name}: {text.plural(len(parts), 'window')} of {len(parts[0]):,} tokens, "
            f"{tokens:,} in all",
            style="dim",
        ),
        soft_wrap=True,
    )
    _show(results)


def _show(results: list[Result]) -> None:
    headings = (
        "KV CACHE",
        "TRANSFORM",
        "PPL",
        "CHANGE",
        "MEAN KL",
        "P99 KL",
        "TOP-1",
        "KV PER TOKEN",
        "OF BF16",
        "DECODE",
    )
    rows = [
        (
            result.kv_cache_dtype,
            result.transform,
            f"{result.quality.ppl:.3f}",
            f"{result.quality.ppl_increase:+.2%}",
            f"{result.quality.kl_mean:.1e}",
            f"{result.quality.kl_p99:.1e}",
            f"{result.quality.top1:.2%}",
            format_size(result.bytes_per_token),
            f"{result.bytes_per_token / result.bf16_bytes_per_token:.3f}x",
            f"{result.decode_tokens_per_second:,.0f} tok/s",
        )
        for result in results
    ]
    show_table(headings, rows, left=frozenset({0, 1}))
