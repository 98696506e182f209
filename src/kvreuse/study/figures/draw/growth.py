"""The picture of ``growth``: rows computed, time, memory; a step above, all steps below."""

from __future__ import annotations

from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvreuse.study.figures.draw.style import Theme, compact, framed, label, smooth, tokens_axis
from kvreuse.study.figures.record import Caption, Record

MIB = 1 << 20


def draw(record: Record, caption: Caption, theme: Theme) -> Figure:
    """Six panels."""
    data = record.data
    tokens = data["tokens"]
    figure, axes = framed(caption, 2, 3, height=3.7, wspace=0.32)
    with_colour, without_colour = theme.colours[0], theme.colours[1]
    series = {"with": with_colour, "without": without_colour}
    _pair(axes[0], tokens, {way: data[f"{way}_rows"] for way in series}, series)
    axes[0].set(title="Key rows computed at a step", ylabel="rows a layer")
    milliseconds = {way: [1e3 * s for s in data[f"{way}_seconds"]] for way in series}
    for way, colour in series.items():
        axes[1].plot(tokens, milliseconds[way], ".", ms=2, color=colour, alpha=0.35)
    smoothed = {way: smooth(values) for way, values in milliseconds.items()}
    _pair(axes[1], tokens, smoothed, series)
    most = max(smoothed["without"])
    axes[1].set(title="Time of a step", ylabel="ms", ylim=(0, 1.25 * most))
    rows = {way: list(accumulate(data[f"{way}_rows"])) for way in series}
    _pair(axes[3], tokens, rows, series)
    axes[3].set(title="Key rows computed in all", ylabel="rows a layer")
    axes[3].yaxis.set_major_formatter(compact)
    seconds = {way: list(accumulate(data[f"{way}_seconds"])) for way in series}
    _pair(axes[4], tokens, seconds, series)
    axes[4].set(title="Time in all", ylabel="s")
    _remaining(axes[2], axes[5], record, with_colour)
    for panel in axes:
        tokens_axis(panel)
        panel.set_ylim(bottom=0)
    return figure


def _pair(
    axes: Axes, tokens: list[int], values: dict[str, list[float]], colours: dict[str, str]
) -> None:
    """Both ways as lines, each with its name."""
    axes.plot(tokens, values["without"], color=colours["without"], dashes=(5, 1.5))
    axes.plot(tokens, values["with"], color=colours["with"])
    at = int(0.6 * len(tokens))
    x = tokens[at]
    label(axes, x, values["without"][at], "without", colours["without"], ha="right", offset=(-5, 7))
    label(
        axes,
        tokens[-1],
        values["with"][-1],
        "with cache",
        colours["with"],
        ha="right",
        offset=(0, 8),
    )


def _remaining(above: Axes, below: Axes, record: Record, colour: str) -> None:
    """What the cache does not take away: reading all rows, and holding them."""
    long, data = record.data["long"], record.data
    above.plot(long["tokens"], [1e3 * s for s in long["seconds"]], "o-", color=colour)
    above.set(title="Still O(N): a step reads all rows", ylabel="ms, with cache")
    above.set_ylim(0, 1.2e3 * max(long["seconds"]))
    tokens = [*data["tokens"], *long["tokens"]]
    held = [nbytes / MIB for nbytes in (*data["held_bytes"], *long["held_bytes"])]
    exact = [count * record.summary["bytes_per_token"] / MIB for count in tokens]
    below.plot(tokens, exact, color=colour, lw=1, dashes=(2, 2))
    below.plot(long["tokens"], held[len(data["tokens"]) :], "o", color=colour)
    below.plot(data["tokens"], held[: len(data["tokens"])], color=colour)
    below.set(title="Keys and values held", ylabel="MiB")
    for axes in (above, below):
        axes.set_xticks(long["tokens"][::2] if len(long["tokens"]) < 4 else long["tokens"][2:])
