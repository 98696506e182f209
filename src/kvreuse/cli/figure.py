"""``kvreuse figure``: measure what the cache does, and draw it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreuse.cli import terminal
from kvreuse.cli.flags import Model
from kvreuse.cli.terminal import progress
from kvreuse.errors import ConfigError

if TYPE_CHECKING:
    from kvreuse.study.figures.record import Record

DEFAULT_MODEL = "smollm2-135m"
NAMES = ("growth", "memory", "prefix", "pool", "quality")


def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(NAMES)}.")],
    model: Model = DEFAULT_MODEL,
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
    # What a figure needs is imported here, so that other commands start without it.
    from kvreuse.study.figures import catalogue  # noqa: PLC0415
    from kvreuse.study.figures.record import Options  # noqa: PLC0415

    kind = catalogue.kind(name)
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
        terminal.write_out(catalogue.as_json(record))
    else:
        _write(record, output)


def _write(record: Record, folder: Path) -> None:
    """Write the files of a figure, and say what it shows and where it is."""
    from kvreuse.study.figures import catalogue  # noqa: PLC0415

    caption = catalogue.captions_of(record).en
    paths = catalogue.write(record, folder)
    terminal.say(caption.title, "bold")
    terminal.say(terminal.one_line(caption.text))
    for path in paths:
        terminal.say(f"  {terminal.one_line(str(path))}", "dim")
