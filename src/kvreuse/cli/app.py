"""The application: what ``kvreuse`` does before a command takes over."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from kvreuse.cli.calibrate import calibrate
from kvreuse.cli.eval import evaluate
from kvreuse.cli.figure import figure
from kvreuse.cli.guard import GuardedGroup
from kvreuse.cli.info import info
from kvreuse.cli.models import models
from kvreuse.cli.plan import plan
from kvreuse.cli.pull import pull
from kvreuse.cli.run import run
from kvreuse.cli.serve import serve
from kvreuse.cli.simulate import simulate
from kvreuse.cli.why import why

HELP = """
Run language models on this CPU; every key and value is computed once and kept in pages.

Start here: [bold cyan]kvreuse pull smollm2-135m[/] and then
[bold cyan]kvreuse run smollm2-135m "Why is the sky blue?"[/]
"""

app = typer.Typer(
    cls=GuardedGroup,
    name="kvreuse",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(serve)
app.command()(pull)
app.command()(models)
app.command()(info)
app.command()(simulate)
app.command()(plan)
app.command()(why)
app.command()(calibrate)
app.command(name="eval")(evaluate)
app.command()(figure)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"kvreuse {version('kvreuse')}")
    except PackageNotFoundError:  # run from a source tree
        typer.echo("kvreuse (not installed)")
    raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass
