"""How the figures look: two themes, one frame with a title above and a caption below."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from kvreuse.study.figures.record import Caption

WIDTH = 9.17
"""Inches; 660 points are the 880 pixels at which a page shows a picture."""
CAPTION_COLUMNS = 138
TITLE_SIZE, TEXT_SIZE, SMALL = 12.5, 9.0, 8.5
LINE = 0.165
"""Inches of a line of the caption."""

# Steps of a grid in which every two differ for all common kinds of colour vision (after Okabe and
# Ito, "Color Universal Design"); lines differ by their dashes and labels as well.
_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#007a5a", "#a8437f", "#6b7280"),
    "dark": ("#56b4e9", "#f0a24a", "#3ccf9e", "#e69ac6", "#9198a1"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture: paper, ink, fainter ink, grid, and those of the series."""

    name: str
    paper: str
    ink: str
    faint: str
    grid: str
    colours: tuple[str, ...]


LIGHT = Theme("light", "#ffffff", "#1f2328", "#57606a", "#e3e7ec", _COLOURS["light"])
DARK = Theme("dark", "#0d1117", "#f0f3f6", "#9198a1", "#2a313a", _COLOURS["dark"])
THEMES = (LIGHT, DARK)


def settings(theme: Theme) -> Any:
    """What matplotlib must be set to.

    Text stays text: DejaVu Sans, whose widths the picture is made for, or a narrower one.
    """
    return {
        "font.family": "sans-serif",
        "font.size": TEXT_SIZE,
        "svg.fonttype": "none",
        "svg.hashsalt": "kvreuse",
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.grid,
        "axes.labelcolor": theme.faint,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": TEXT_SIZE,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": SMALL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.minor.visible": False,
        "ytick.minor.visible": False,
        "text.color": theme.ink,
        "lines.linewidth": 1.9,
        "lines.markersize": 4.5,
    }


def framed(
    caption: Caption, rows: int, columns: int, *, height: float, **grid: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A picture with ``rows`` x ``columns`` axes of ``height`` inches together, row by row."""
    lines = textwrap.wrap(caption.text, CAPTION_COLUMNS)
    top, bottom = 0.66, 0.62 + LINE * len(lines)
    total = top + height + bottom
    figure = Figure(figsize=(WIDTH, total))
    figure.text(0.012, 1 - 0.24 / total, caption.title, size=TITLE_SIZE, weight="bold", va="center")
    figure.text(
        0.012,
        (LINE * len(lines) + 0.06) / total,
        "\n".join(lines),
        size=SMALL,
        va="top",
        linespacing=1.32,
        color=_faint(),
    )
    spacing = {"left": 0.075, "right": 0.985, "wspace": 0.3, "hspace": 0.62} | grid
    layout = figure.add_gridspec(
        rows, columns, top=1 - top / total, bottom=bottom / total, **spacing
    )
    axes = [
        figure.add_subplot(layout[row, column]) for row in range(rows) for column in range(columns)
    ]
    return figure, axes


def label(axes: Axes, x: float, y: float, words: str, colour: str, **placing: Any) -> None:
    """Words at a point, in the colour of what they name; ``offset`` is in points."""
    offset = placing.pop("offset", (4, 0))
    axes.annotate(
        words,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        color=colour,
        size=SMALL,
        weight="bold",
        annotation_clip=False,
        bbox={"facecolor": _paper(), "edgecolor": "none", "alpha": 0.9, "pad": 0.6},
        **{"va": "center", "ha": "left"} | placing,
    )


def labels_apart(
    axes: Axes, ends: Sequence[tuple[float, float, str, str]], *, gap: float = 10.5, at: float = 4
) -> None:
    """Labels of line ends (x, y, words, colour), moved up or down until they are ``gap`` apart."""
    to_points = 72 / axes.figure.dpi
    heights = [axes.transData.transform((x, y))[1] * to_points for x, y, _, _ in ends]
    order = sorted(range(len(ends)), key=heights.__getitem__)
    placed = list(heights)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + gap)
    over = sum(placed[i] - heights[i] for i in order) / max(len(order), 1)
    for index, (x, y, words, colour) in enumerate(ends):
        label(axes, x, y, words, colour, offset=(at, placed[index] - heights[index] - over))


def compact(value: float, _position: object = None) -> str:
    """An axis' number: ``512``, ``8k``, ``1.5M``."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def tokens_axis(axes: Axes, words: str = "tokens") -> None:
    """The horizontal axis counts tokens."""
    axes.set_xlabel(words)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def size_axis(axes: Axes, unit: int = 1 << 20) -> None:
    """The vertical axis counts bytes, in whole units: 1, 16, 256 MiB, 4 GiB."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size_words(value * unit)))
    axes.yaxis.set_minor_locator(NullLocator())


def size_words(nbytes: float) -> str:
    """Bytes as an axis says them: ``256 MiB``, ``0.5 GiB``."""
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:g} {unit}"
    return f"{nbytes:g}"


def smooth(values: Sequence[float], width: int = 9) -> list[float]:
    """The median of ``width`` neighbours, fewer at the ends."""
    half = width // 2
    spans = (sorted(values[max(0, i - half) : i + half + 1]) for i in range(len(values)))
    return [span[len(span) // 2] for span in spans]


def _faint() -> str:
    """The fainter ink of the theme in force."""
    return str(rcParams["axes.labelcolor"])


def _paper() -> str:
    """The paper of the theme in force."""
    return str(rcParams["axes.facecolor"])
