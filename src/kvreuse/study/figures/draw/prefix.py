"""The picture of ``prefix``: time to the first token and memory over the share of the prefix."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from kvreuse.study.figures.draw.style import Theme, framed, label
from kvreuse.study.figures.record import (
    Caption,
    Record,
    factor,
)

MIB = 1 << 20


def draw(record: Record, caption: Caption, theme: Theme) -> Figure:
    """Two panels: time, memory."""
    data, summary = record.data, record.summary
    figure, axes = framed(caption, 1, 2, height=2.7, wspace=0.2)
    shares = data["shares"]
    at = shares.index(summary["share"])
    panels = (
        (axes[0], "first_token_seconds", 1e-3, "first_token_factor", "sooner"),
        (axes[1], "held_bytes", MIB, "held_factor", "less"),
    )
    for panel, key, unit, by, word in panels:
        on, off = ([value / unit for value in data[way][key]] for way in ("with", "without"))
        _ways(panel, shares, on, off, theme)
        _gap(panel, shares[at], on[at], off[at], f"{factor(summary[by])} times\n{word}", theme)
    axes[0].set(title="Time to the first token, mean", ylabel="ms")
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes[1].set(title="Keys and values held by all requests", ylabel="MiB")
    return figure


def _ways(
    axes: Axes, shares: Sequence[float], on: Sequence[float], off: Sequence[float], theme: Theme
) -> None:
    """Both ways over the shares, each with its name."""
    with_colour, without_colour = theme.colours[0], theme.colours[1]
    axes.plot(shares, off, "s-", color=without_colour, dashes=(5, 1.5))
    axes.plot(shares, on, "o-", color=with_colour)
    axes.set_ylim(0, 1.22 * max(*on, *off))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of the prompt that all requests have in common")
    label(
        axes,
        shares[-1],
        off[-1],
        "without prefix caching",
        without_colour,
        ha="right",
        offset=(0, 10),
    )
    label(axes, shares[1], on[1], "with", with_colour, ha="right", offset=(-4, -11))


def _gap(axes: Axes, x: float, low: float, high: float, words: str, theme: Theme) -> None:
    """An arrow from what was to what is, with the factor."""
    axes.annotate(
        "",
        (x, low),
        (x, high),
        arrowprops={"arrowstyle": "->", "color": theme.ink, "shrinkA": 5, "shrinkB": 5},
    )
    label(axes, x, high - 0.3 * (high - low), words, theme.ink, ha="right", offset=(-6, 0))
