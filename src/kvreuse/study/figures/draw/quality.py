"""The picture of ``quality``: perplexity and divergence against the bytes of a token."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.study.figures.draw.style import Theme, framed, label
from kvreuse.study.figures.quality import BASIS
from kvreuse.study.figures.record import Caption, Record

KIB = 1 << 10
MARKERS = "osD^vP"
LETTER, GAP = 6.2, 11.0
"""Points: the width of a letter, the height of a line."""


def draw(record: Record, caption: Caption, theme: Theme) -> Figure:
    """Two panels: the rise of perplexity, and the KL divergence, which is less noisy."""
    figure, axes = framed(caption, 1, 2, height=2.8, right=0.93, wspace=0.36)
    summary = record.summary
    rise = {name: 100 * entry["ppl_increase"] for name, entry in summary.items()}
    _scatter(axes[0], record, rise, theme)
    axes[0].axhline(0, color=theme.faint, lw=1, zorder=1)
    axes[0].set(title=f"Perplexity over {BASIS}", ylabel="rise")
    axes[0].yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g}%" if value else "0%")
    )
    divergence = {name: entry["kl_mean"] for name, entry in summary.items() if entry["kl_mean"] > 0}
    if divergence:
        axes[1].set_yscale("log")
        axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes[1].yaxis.set_minor_locator(NullLocator())
    _scatter(axes[1], record, divergence, theme)
    axes[1].set(title=f"Distance from {BASIS}'s distribution", ylabel="mean KL divergence, nats")
    return figure


def _scatter(axes: Axes, record: Record, values: dict[str, float], theme: Theme) -> None:
    """A marker and a name a codec, in the colour that it has in ``memory``; hollow where plain."""
    most = max(entry["bytes_per_token"] for entry in record.summary.values()) / KIB
    axes.set_xlim(0, 1.12 * most)
    marks = []
    for name, value in values.items():
        codec, plain = name.partition(" ")[0], name.endswith("(no transform)")
        index = [*UNIFORM, codec].index(codec)
        colour = theme.colours[index % len(theme.colours)]
        size = record.summary[name]["bytes_per_token"] / KIB
        face = theme.paper if plain else colour
        marker = MARKERS[index % len(MARKERS)]
        axes.plot([size], [value], marker, color=colour, markerfacecolor=face, ms=8)
        marks.append((size, value, name, colour))
    axes.margins(y=0.2)
    axes.set_xlabel("KiB of keys and values a token")
    _label(axes, marks)


def _label(axes: Axes, marks: list[tuple[float, float, str, str]]) -> None:
    """Names right of their markers, each raised above markers and names that it would cover."""
    axes.autoscale_view()  # now: places are taken from it
    points = 72 / axes.figure.dpi
    where = [axes.transData.transform((x, y)) * points for x, y, _, _ in marks]
    placed = [(float(x) - 6, float(x) + 6, float(y)) for x, y in where]
    for x, y, words, colour in sorted(marks, key=lambda mark: mark[1]):
        mark, height = axes.transData.transform((x, y)) * points
        left, raised = mark + 8, height
        right = left + LETTER * len(words)
        for begin, end, other in sorted(placed, key=lambda place: place[2]):
            if left < end and begin < right and abs(raised - other) < GAP:
                raised = other + GAP
        placed.append((left, right, raised))
        label(axes, x, y, words, colour, offset=(8, raised - height))
