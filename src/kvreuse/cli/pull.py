"""``kvreuse pull``: fetch a model of the catalogue, or of the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from kvreuse.cli import terminal
from kvreuse.cli.terminal import progress
from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import source
from kvreuse.sizes import format_size


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A model's name, or org/repo:file.gguf of the hub; without one, a list.",
        ),
    ] = "",
) -> None:
    """Get a model by name, checked against its SHA-256, and print the file's path.

    A download that was cut goes on from there when it is asked for again. HF_ENDPOINT names another
    hub, HF_TOKEN a token for it.

    \b
      kvreuse pull smollm2-135m
      kvreuse pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf
    """
    if not name:
        raise ModelFileError(
            f"which model? kvreuse pull NAME, with one of: {_names()}, or org/repo:file.gguf"
        )
    with progress(name, patience=0.0) as report:
        path = source.pull(name, progress=report)
    entry = source.CATALOGUE.get(name)
    terms = f", {entry.license}" if entry else ""
    size = format_size(path.stat().st_size)
    terminal.stderr().print(f"{name}: {size}{terms}, SHA-256 verified", style="dim", soft_wrap=True)
    terminal.write_out(f"{path}\n")


def _names() -> str:
    return ", ".join(
        f"{name} ({format_size(entry.size)})" for name, entry in source.CATALOGUE.items()
    )
