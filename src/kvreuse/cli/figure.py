"""``kvreuse figure``: measure what the cache does, and draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvreuse.cli import text
from kvreuse.cli.progress import progress
from kvreuse.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
NAMES = ("growth", "memory", "prefix", "pool", "quality")


def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(NAMES)}.")],
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="A GGUF file, or a name that pull knows.")
    ] = DEFAULT_MODEL,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the files go.")
    ] = Path(),
    tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Size of the measurement; left out: the figure's own."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Runs that medians are taken of, if time allows.")
    ] = 3,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="No run begins that would end later.")
    ] = 120.0,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of the kernels; left out: all cores.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For quality: what kvreuse eval --json wrote."),
    ] = None,
    redraw: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw this figure's JSON again; nothing is measured."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print the numbers; no files, no matplotlib."),
    ] = False,
) -> None:
    """Measure what the cache does and draw it: NAME-light and NAME-dark as SVG and PNG, NAME.json.

    \b
      kvreuse figure growth
      kvreuse figure prefix qwen2.5-coder-0.5b-instruct-q4 --output figures
      kvreuse figure memory --json | jq .data.limit_bytes
      kvreuse figure growth --redraw docs/figures/growth.json
      kvreuse figure quality --results results.json
    """
    # What a figure needs is loaded here: other commands do not wait for it.
    from kvreuse.study.figures import (  # noqa: PLC0415
        catalogue,
        files,
    )
    from kvreuse.study.figures.record import Options  # noqa: PLC0415

    kind = catalogue.kind(name)
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads must be at least 1, got {threads}")
    if not as_json:
        catalogue.must_draw()
    if redraw is not None:
        record = catalogue.read(redraw)
        if record.figure != name:
            raise ConfigError(f"{redraw} is a record of the figure {record.figure}, not of {name}")
    else:
        with progress(f"Measuring {name}") as report:
            record = kind.measure(Options(model, tokens, repeats, budget, threads, results, report))
    if as_json:
        text.write_out(catalogue.as_json(record))
        return
    caption = catalogue.captions_of(record).en
    paths = files.write(record, output)
    out = text.stdout()
    out.print(caption.title, style="bold", soft_wrap=True)
    out.print(text.one_line(caption.text), soft_wrap=True)
    for path in paths:
        out.print(f"  {text.one_line(str(path))}", style="dim", soft_wrap=True)
