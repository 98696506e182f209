"""``kvreuse models``: the models that are here, and those that ``pull`` could get."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from kvreuse.cli import text
from kvreuse.errors import KVReuseError
from kvreuse.kv.layout import KVLayout
from kvreuse.model.fetch.inventory import Listed, listed
from kvreuse.model.fetch.source import CATALOGUE
from kvreuse.model.open import open_checkpoint
from kvreuse.sizes import format_size

HEADINGS = ("NAME", "SIZE", "ARCHITECTURE", "PARAMETERS", "CONTEXT", "KV PER TOKEN")


def models(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON array.")
    ] = False,
) -> None:
    """List the models that are here: in the folders of KVREUSE_MODELS, pulled, in the hub's cache.

    A file that cannot be served is listed with what is wrong with it.

    \b
      kvreuse models
      KVREUSE_MODELS=~/models:/mnt/shared kvreuse models
      kvreuse models --json | jq -r '.[] | select(.error == null) | .name'
    """
    here = [_facts(model) for model in listed()]
    absent = [_absent_facts(name) for name in CATALOGUE if name not in {m["name"] for m in here}]
    if as_json:
        text.write_out(json.dumps(here + absent) + "\n")
        return
    for place, group in itertools.groupby(here, key=lambda model: str(model["place"])):
        _show(_short(place), [HEADINGS, *(_row(model) for model in group)])
    if absent:
        _show("not here yet: kvreuse pull NAME", [_absent_row(model) for model in absent])


def _facts(model: Listed) -> dict[str, Any]:
    """What the header says, or why the file cannot be served. Sizes in bytes."""
    facts = _blank(model.name) | {"place": str(model.place), "path": str(model.path)}
    try:
        facts["size"] = model.path.stat().st_size
        with open_checkpoint(model.path) as checkpoint:
            shape = checkpoint.shape
            facts["parameters"] = sum(math.prod(t.shape) for t in checkpoint.tensors.values())
        facts["architecture"] = shape.architecture
        facts["context"] = shape.context_length
        facts["kv_bytes_per_token"] = KVLayout.of(shape).bytes_per_token
    except KVReuseError as error:
        facts["error"] = text.one_line(str(error).removeprefix(f"{model.path}: "))
    except OSError as error:
        facts["error"] = error.strerror or type(error).__name__
    return facts


def _absent_facts(name: str) -> dict[str, Any]:
    """A model of the catalogue that is not here; ``size`` is what its file will have."""
    why = f"not here yet: kvreuse pull {name}"
    return _blank(name) | {"size": CATALOGUE[name].size, "error": why}


def _blank(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "place": None,
        "path": None,
        "size": None,
        "architecture": None,
        "parameters": None,
        "context": None,
        "kv_bytes_per_token": None,
        "error": None,
    }


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size = "" if model["size"] is None else format_size(model["size"])
    if model["error"] is not None:
        return model["name"], size, f"error: {model['error']}"
    return (
        model["name"],
        size,
        model["architecture"],
        _count(model["parameters"]),
        f"{model['context']:,}",
        format_size(model["kv_bytes_per_token"]),
    )


def _absent_row(model: dict[str, Any]) -> tuple[str, ...]:
    entry = CATALOGUE[model["name"]]
    return model["name"], format_size(entry.size), f"{entry.description} ({entry.license})"


def _show(title: str, rows: list[tuple[str, ...]]) -> None:
    """A title, and columns below it; the last cell of a row may be as long as it likes."""
    console = text.stdout()
    console.print(Text(text.one_line(title), style="bold"), soft_wrap=True)
    cells = [[text.one_line(cell) for cell in row] for row in rows]
    widths = [max((len(row[i]) for row in cells if len(row) > i + 1), default=0) for i in range(6)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        style = "cyan" if tuple(row) == HEADINGS else "red" if "error: " in row[-1][:7] else ""
        console.print(Text("  " + "  ".join(padded).rstrip(), style=style), soft_wrap=True)


def _count(number: int) -> str:
    """``134.5M``, ``1.54B``: as models' names say it."""
    for size, letter in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _short(folder: str) -> str:
    """A folder as its user would write it."""
    try:
        return f"~/{Path(folder).relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return folder
