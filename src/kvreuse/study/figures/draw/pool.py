"""The picture of ``pool``: time of an append, and what memory holds no token under a load."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from kvreuse.study.figures.draw.style import Theme, framed, label, tokens_axis
from kvreuse.study.figures.record import Caption, Record

MIB = 1 << 20
WORDS = {"concatenation": "concatenation", "pool": "pages of a pool"}


def draw(record: Record, caption: Caption, theme: Theme) -> Figure:
    """Two panels: time; memory, the wider one."""
    figure, axes = framed(caption, 1, 2, height=3.0, wspace=0.16, width_ratios=(1, 1.7))
    colours = {"concatenation": theme.colours[1], "pool": theme.colours[0]}
    _times(axes[0], record, colours)
    _memory(axes[1], record, colours, theme)
    return figure


def _times(axes: Axes, record: Record, colours: dict[str, str]) -> None:
    """Milliseconds of an append over the length."""
    tokens, seconds = record.data["tokens"], record.data["seconds"]
    for name, colour in colours.items():
        values = [1e3 * s for s in seconds[name]]
        (line,) = axes.plot(tokens, values, color=colour)
        if name == "concatenation":
            line.set_dashes((5, 1.5))
            at = int(0.6 * len(tokens))
            label(axes, tokens[at], values[at], WORDS[name], colour, ha="right", offset=(-8, 8))
        else:
            label(axes, tokens[-1], values[-1], WORDS[name], colour, ha="right", offset=(0, 8))
    axes.set(title="Time to append a token", ylabel="ms", yscale="log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    tokens_axis(axes, "tokens of the sequence")


def _memory(axes: Axes, record: Record, colours: dict[str, str], theme: Theme) -> None:
    """What is taken over what holds tokens: the gaps are lost."""
    loads = record.data["load"]
    rounds = loads["pool"]["rounds"]
    live = _mib(loads["pool"]["live_bytes"])
    reserved = record.summary["reserved"]["bytes"] / MIB
    arrays = _mib(loads["concatenation"]["resident_bytes"])
    pages = _mib(loads["pool"]["taken_bytes"])
    axes.axhline(reserved, color=theme.colours[3], dashes=(1.5, 1.2))
    axes.fill_between(rounds, live, arrays, color=colours["concatenation"], alpha=0.15, lw=0)
    colour = colours["concatenation"]
    axes.plot(rounds, arrays, color=colour, dashes=(5, 1.5), label="joined arrays, resident")
    axes.plot(rounds, pages, color=colours["pool"], label="pages in use")
    axes.plot(rounds, live, color=theme.faint, lw=1.2, label="tokens themselves")
    label(axes, 0, reserved, "the longest reserved for each", theme.colours[3], offset=(4, -9))
    names = axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 0.56), frameon=False, labelcolor="linecolor"
    )
    for words in names.get_texts():
        words.set(size="small", weight="bold")
    axes.set(title="Memory of sequences that come and go", ylabel="MiB", ylim=(0, 1.15 * reserved))
    tokens_axis(axes, "tokens appended to each place")


def _mib(sizes: list[int]) -> list[float]:
    return [nbytes / MIB for nbytes in sizes]
