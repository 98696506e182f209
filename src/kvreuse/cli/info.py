"""``kvreuse info``: what this machine runs on, and what a model is made of."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer
from rich.text import Text

from kvreuse.cli import facts, terminal
from kvreuse.cli.flags import AsJson
from kvreuse.cli.terminal import plural
from kvreuse.sizes import format_size

Rows = list[tuple[str, str]]
COLUMN = 17
"""Characters before a value."""


def info(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that pull knows.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show this machine and the kernels it gets; with a model, also what that is made of.

    \b
      kvreuse info
      kvreuse info smollm2-135m
      KVREUSE_ISA=portable kvreuse info
      kvreuse info model.gguf --json | jq .model.kv_bytes_per_token
    """
    found = {"machine": facts.machine_facts()}
    if model is not None:
        found["model"] = facts.model_facts(model)
    if as_json:
        terminal.write_json(found)
        return
    _show("machine", _machine_rows(found["machine"]))
    if model is not None:
        _show("model", _model_rows(found["model"]))


def _machine_rows(machine: dict[str, Any]) -> Rows:
    cache = format_size(machine["kv_cache_memory"])
    return [
        ("CPU", machine["cpu"]),
        ("ISA path", f"{machine['isa']}: {machine['isa_reason']}"),
        *((f"  {path['name']}", _availability(path)) for path in machine["isa_paths"]),
        ("threads", str(machine["threads"])),
        ("memory", f"{format_size(machine['memory_available'])} available"),
        ("KV cache", f"{cache}, a quarter of that (--kv-cache-memory sets it)"),
    ]


def _availability(path: dict[str, Any]) -> str:
    if not path["supported"]:
        return f"not here: no {path['missing']}"
    return "available" if path["automatic"] else "available, if asked for"


def _model_rows(model: dict[str, Any]) -> Rows:
    heads, kv_heads = model["heads"], model["kv_heads"]
    widths = f"{model['hidden_size']:,} wide, {model['intermediate_size']:,} inside"
    tensors = [
        f"{entry['count']} {kind}, repacked to {entry['packed']}: {entry['change']}"
        for kind, entry in model["tensors"].items()
    ]
    return [
        ("file", f"{model['file']}, {format_size(model['file_bytes'])}"),
        ("architecture", model["architecture"]),
        ("layers", f"{model['layers']}, {widths}"),
        ("heads", f"{heads} of {model['head_dim']} channels"),
        ("KV heads", f"{kv_heads}, each for {plural(heads // kv_heads, 'head')}"),
        *_window_rows(model["windows"]),
        ("RoPE", _rope(model["rope"])),
        *([("  in windows", _rope(model["local_rope"]))] if model["local_rope"] else []),
        ("vocabulary", plural(model["vocabulary"], "token")),
        ("context", plural(model["context"], "token")),
        ("chat template", "yes" if model["chat_template"] else "no"),
        ("KV per token", f"{format_size(model['kv_bytes_per_token'])} in {model['kv_codec']}"),
        ("page", f"{plural(model['page_size'], 'token')}, {format_size(model['page_bytes'])}"),
        ("KV cache", _kv_cache(model["memory"])),
        ("memory", model["memory"]["in_words"]),
        *(("" if row else "tensors", line) for row, line in enumerate(tensors)),
    ]


def _kv_cache(memory: dict[str, Any]) -> str:
    size = format_size(memory["kv_cache"])
    return f"{size}: {plural(memory['pages'], 'page')}, {plural(memory['tokens'], 'token')}"


def _window_rows(windows: list[int | None]) -> Rows:
    """How far layers with a window see; nothing where there are none."""
    sizes = [window for window in windows if window]
    if not sizes:
        return []
    return [("window", f"{plural(max(sizes), 'token')} on {len(sizes)} of {len(windows)} layers")]


def _rope(rope: dict[str, Any]) -> str:
    base = f"base {rope['base']:,.0f}"
    if rope["scaling"] == "none":
        return base
    if rope["scaling"] == "factors":
        return f"{base}, slowed by factors of the file"
    return f"{base}, {rope['scaling']} scaling by {rope['factor']:g}"


def _show(title: str, rows: Rows) -> None:
    """Two columns under a title; on a terminal, a long value goes on below itself."""
    console = terminal.stdout()
    width = max(20, console.width - COLUMN) if console.is_terminal else None
    console.print(Text(title, style="bold"))
    for name, value in rows:
        words = terminal.one_line(value)
        lines = textwrap.wrap(words, width) if width else [words]
        for line in lines:
            label = f"  {name}" if line is lines[0] else ""
            console.print(Text.assemble((label.ljust(COLUMN), "cyan"), line), soft_wrap=True)
