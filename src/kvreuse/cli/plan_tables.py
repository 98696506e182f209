"""A plan as tables: what is kept, what it costs, what fits."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvreuse.cli import text
from kvreuse.cli.text import plural
from kvreuse.plan.memory import UNBOUNDED, state_bytes
from kvreuse.shape import CacheShape, LayerShape
from kvreuse.sizes import format_size

Found = dict[str, Any]
FILE_WIDTH = 160
"""Columns where there is no terminal: nothing is cut."""


def show(shape: CacheShape, found: Found, *, si: bool, here: bool) -> None:
    """Print all of ``found``, the report of a plan. ``here``: its memory is this machine's."""
    Tables(text.stdout(), found, si=si).show(shape, here=here)


class Tables:
    """The tables of one report, in one kind of units."""

    def __init__(self, console: Console, found: Found, *, si: bool) -> None:
        if not console.is_terminal:
            console = Console(highlight=False, emoji=False, width=FILE_WIDTH)
        self._console = console
        self._found = found
        self._si = si
        self._basis = "reserved" if found["model"]["served"] else "needed"

    def show(self, shape: CacheShape, *, here: bool) -> None:
        """All of them, in the order of the questions they answer."""
        self._model(shape)
        self._keys_and_values()
        self._all_memory()
        self._fits(here=here)
        self._lengths()
        self._codecs()
        unit = "1 GB = 1,000,000,000 bytes" if self._si else "1 GiB = 1,073,741,824 bytes; --si: GB"
        self._line("", indent=0)
        self._line(unit, "dim", indent=0)

    def _model(self, shape: CacheShape) -> None:
        model, limit = self._found["model"], shape.context_length
        context = f", context {plural(limit, 'token')}" if limit else ""
        head = f"{model['name']}: {model['architecture']}, {plural(model['layers'], 'layer')}"
        self._line(f"{head}{context}", "bold", indent=0)
        self._line(f"from {model['source']}", "dim")
        for layer, count in Counter(shape.layers).items():
            self._line(f"{count:,} x {layer_in_words(layer, si=self._si)}")
        if not model["served"]:
            self._line(f"this engine does not serve it: {model['unserved_because']}", "yellow")

    def _keys_and_values(self) -> None:
        found, context = self._found, self._found["context"]
        rows = [("a token", found["token"])]
        if found["lasting_token"]["needed"] != found["token"]["needed"]:
            rows.append(("a token, once past the windows", found["lasting_token"]))
        if found["state"]["needed"]:
            rows.append(("states of a sequence", found["state"]))
        rows.append((f"a sequence of {plural(context, 'token')}", found["sequence"]))
        if found["parallel"] > 1:
            rows.append((f"{found['parallel']:,} sequences", found["batch"]))
        if found["shared_prefix"]:
            words = f"the same, {plural(found['shared_prefix'], 'token')} of each shared"
            rows.append((words, found["batch_sharing"]))
        differ = any(entry["needed"] != entry["reserved"] for _, entry in rows)
        names = ("needed", "reserved here") if differ else ("",)
        table = self._table(f"keys and values in {found['codec']}", "", *names)
        for words, entry in rows:
            sizes = (entry["needed"], entry["reserved"]) if differ else (entry["reserved"],)
            _row(table, words, *map(self._size, sizes))
        self._console.print(table)

    def _all_memory(self) -> None:
        found = self._found
        table = self._table("all memory", "", "")
        weights = found["weights"]
        as_words = f"weights, {found['model']['weights_as']}" if weights is not None else "weights"
        _row(table, as_words, "unknown (--weights)" if weights is None else self._size(weights))
        if found["process"]:
            _row(table, "buffers of a step", self._size(found["buffers"]))
            _row(table, "process and tokenizer", self._size(found["process"]))
        batch = found["batch_sharing"][self._basis]
        _row(table, f"keys and values, {self._basis}", self._size(batch))
        _row(table, "together", Text(self._size(found["total"]), "bold"))
        self._console.print(table)

    def _fits(self, *, here: bool) -> None:
        found, fits = self._found, self._found["fits"]
        where = ", available here" if here else ""
        table = self._table(f"what fits in {self._size(found['memory'])}{where}", "", "")
        who = plural(found["parallel"], "sequence")
        _row(table, f"longest context of {who}", self._tokens(fits["context"]))
        many = f"most sequences of {plural(found['context'], 'token')}"
        _row(table, many, self._count(fits["parallel"]))
        self._console.print(table)

    def _lengths(self) -> None:
        """Keys and values, a row a length, a column a batch size."""
        found, cells = self._found, self._found["table"]
        batches = sorted({cell["sequences"] for cell in cells})
        names = [plural(count, "sequence") for count in batches]
        table = self._table(f"keys and values, {self._basis}", "tokens", *names)
        for tokens in sorted({cell["tokens"] for cell in cells}):
            row = [cell for cell in cells if cell["tokens"] == tokens]
            _row(table, f"{tokens:,}", *map(self._cell, row))
        self._console.print(table)
        if any(cell["total"] > found["memory"] for cell in cells):
            self._line(f"! with all the rest, more than {self._size(found['memory'])}", "red")

    def _cell(self, cell: Found) -> Text:
        over = cell["total"] > self._found["memory"]
        return Text(f"{self._size(cell['kv'])} {'!' if over else ' '}", "red" if over else "")

    def _codecs(self) -> None:
        who = plural(self._found["parallel"], "sequence")
        table = self._table("codecs", "", "a token", who, "saved", "longest context")
        for entry in self._found["codecs"]:
            whole = entry["batch"] + entry["saved"]
            share = f"{entry['saved'] / whole:.0%}" if whole else "0%"
            _row(
                table,
                entry["codec"],
                self._size(entry["token"]),
                self._size(entry["batch"]),
                share,
                self._tokens(entry["fits_context"], brief=True),
            )
        self._console.print(table)

    def _tokens(self, count: int, *, brief: bool = False) -> str:
        """A context that fits, and whether it is the model that ends it."""
        if count == 0 or count >= UNBOUNDED:
            return self._count(count, brief=brief)
        limit = ", its limit" if count == self._found["model"]["context"] and not brief else ""
        return f"{plural(count, 'token')}{limit}"

    def _count(self, count: int, *, brief: bool = False) -> str:
        if count >= UNBOUNDED:
            return "no limit"
        if count:
            return f"{count:,}"
        weights = self._found["weights"] or 0
        alone = weights > self._found["memory"] and not brief
        return "none: the weights alone are larger" if alone else "none"

    def _size(self, nbytes: int) -> str:
        return format_size(nbytes, si=self._si)

    def _table(self, title: str, first: str, *columns: str) -> Table:
        """A table under a title; the first column is of words, the others of numbers."""
        self._line("", indent=0)
        self._line(title, "bold", indent=0)
        table = Table(
            box=None,
            header_style="cyan",
            padding=(0, 2, 0, 0),
            pad_edge=False,
            show_header=any((first, *columns)),
        )
        table.add_column("", width=0)
        table.add_column(first, justify="right" if first else "left", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        return table

    def _line(self, words: str, style: str = "", indent: int = 2) -> None:
        line = Text(" " * indent + text.one_line(words), style=style)
        self._console.print(line, soft_wrap=True)


def _row(table: Table, *cells: str | Text) -> None:
    """A row, behind the empty column that indents the table."""
    table.add_row("", *cells)


def layer_in_words(layer: LayerShape, *, si: bool = False) -> str:
    """What a layer keeps: ``8 KV heads of 128 channels, window of 512 tokens``."""
    parts = []
    if layer.kv_heads and not layer.value_dim:
        parts.append(f"one latent row of {layer.key_dim} channels")
    elif layer.kv_heads:
        parts.append(f"{plural(layer.kv_heads, 'KV head')} of {layer.key_dim} channels")
    if layer.window is not None:
        parts.append(f"window of {plural(layer.window, 'token')}")
    if state := state_bytes(layer):
        parts.append(f"a state of {format_size(state, si=si)} a sequence")
    return ", ".join(parts) or "nothing of its own"
