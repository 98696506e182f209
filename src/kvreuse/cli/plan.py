"""``kvreuse plan``: the memory a model will take, before there is a model."""

from __future__ import annotations

from typing import Annotated

import typer

from kvreuse.cli import plan_tables, terminal
from kvreuse.config import EngineConfig
from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.report import Wish, report, warnings
from kvreuse.plan.source import find_model, with_weights
from kvreuse.sizes import available_memory, format_size, parse_size

PAGE_SIZE = EngineConfig(model="any").page_size

PlannedName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a config.json, a folder with one, or a name such as llama-3-8b.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS", help="Length of a sequence; left out: the model's limit, at most 32,768."
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What there is, such as 24GiB; left out: what this machine has available.",
    ),
]


def plan(
    model: PlannedName,
    *,
    context: Context = None,
    parallel: Annotated[int, typer.Option(metavar="N", help="Sequences at once.")] = 1,
    kv_cache_dtype: Annotated[
        str, typer.Option(metavar="CODEC", help=f"Of keys and values: {', '.join(UNIFORM)}.")
    ] = "bf16",
    memory: Memory = None,
    shared_prefix: Annotated[
        int,
        typer.Option(metavar="TOKENS", help="Tokens that all sequences start with, kept once."),
    ] = 0,
    weights: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of the weights, where the model does not say it."),
    ] = None,
    page_size: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens in a page of the KV cache.")
    ] = PAGE_SIZE,
    si: Annotated[
        bool, typer.Option("--si", metavar="", help="Decimal units: GB, not GiB.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object; sizes in bytes.")
    ] = False,
) -> None:
    """Show the memory that a model takes, and what fits. No weights are needed.

    \b
      kvreuse plan llama-3-8b
      kvreuse plan smollm2-135m --context 8192 --parallel 32 --shared-prefix 1024
      kvreuse plan model.gguf --memory 24GiB --kv-cache-dtype int8
      kvreuse plan path/to/config.json --weights 15GB --si
      kvreuse plan gemma-3-4b --json | jq .fits
    """
    backend = NativeBackend()
    wish = Wish(
        memory=available_memory() if memory is None else parse_size(memory, "--memory"),
        backend=backend,
        context=context,
        parallel=parallel,
        shared_prefix=shared_prefix,
        codec=kv_cache_dtype,
        page_size=page_size,
    )
    planned = find_model(model, backend)
    if weights is not None:
        planned = with_weights(planned, parse_size(weights, "--weights"))
    found = report(planned, wish)
    lines = warnings(found, lambda nbytes: format_size(nbytes, si=si))
    if as_json:
        terminal.write_json({**found, "warnings": lines})
        return
    plan_tables.show(planned.shape, found, si=si, here=memory is None)
    for line in lines:
        terminal.stderr().print(
            f"warning: {terminal.one_line(line)}", style="yellow", soft_wrap=True
        )
