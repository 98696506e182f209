"""The picture of ``memory``: a panel a batch, a line a codec, the machine's limit across."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from kvreuse.study.figures.draw.style import (
    Theme,
    framed,
    label,
    labels_apart,
    size_axis,
    tokens_axis,
)
from kvreuse.study.figures.record import Caption, Record

MIB = 1 << 20
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.2), (6, 1.5, 1.5, 1.5))


def draw(record: Record, caption: Caption, theme: Theme) -> Figure:
    """Three panels with one vertical scale."""
    data, batches = record.data, record.settings["batches"]
    figure, axes = framed(caption, 1, len(batches), height=2.75, left=0.1, right=0.945, wspace=0.24)
    sizes = [
        values[edge]
        for codec in data["planned_bytes"].values()
        for values in codec.values()
        for edge in (0, -1)
    ]
    most = max(*sizes, data["limit_bytes"]) / MIB
    for panel, batch in zip(axes, batches, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=4)
        panel.set_xlim(data["tokens"][0], data["tokens"][-1])
        panel.set_ylim(min(sizes) / MIB / 1.3, most * 3)
        who = "1 sequence" if batch == 1 else f"{batch} sequences"
        panel.set(title=who)
        tokens_axis(panel, "tokens of each")
        panel.set_xticks([n for n in data["tokens"] if n & (n - 1) == 0][::2])
        panel.xaxis.set_minor_formatter(NullFormatter())
        size_axis(panel)
        _lines(panel, record, str(batch), theme)
    for panel in axes[1:]:
        panel.tick_params(labelleft=False)
    axes[0].set_ylabel("keys and values")
    return figure


def _lines(axes: Axes, record: Record, batch: str, theme: Theme) -> None:
    """The codecs, the limit and the weights; measured dots where the batch is one sequence."""
    data = record.data
    tokens = data["tokens"]
    first, last = tokens[0], tokens[-1]
    limit, weights = data["limit_bytes"] / MIB, data["weight_bytes"] / MIB
    axes.axhline(limit, color=theme.ink, lw=1.1, dashes=(6, 3))
    label(axes, first, limit, "available here", theme.ink, offset=(4, 7))
    axes.axhline(weights, color=theme.faint, lw=1.1, dashes=(1, 2))
    above = batch == "1"
    label(
        axes,
        first if above else last,
        weights,
        "weights",
        theme.faint,
        ha="left" if above else "right",
        offset=(4, 7) if above else (-4, -7),
    )
    ends = []
    for index, (codec, planned) in enumerate(data["planned_bytes"].items()):
        colour = theme.colours[index % len(theme.colours)]
        values = [nbytes / MIB for nbytes in planned[batch]]
        (line,) = axes.plot(tokens, values, color=colour)
        line.set_dashes(DASHES[index % len(DASHES)] or (1, 0))
        ends.append((last, values[-1], codec, colour))
    labels_apart(axes, ends)
    if batch == "1":
        resident = data["resident"]
        axes.plot(
            resident["tokens"],
            [nbytes / MIB for nbytes in resident["bytes"]],
            "o",
            color=theme.colours[0],
            ms=5,
        )
