"""The errors of a calibration as a picture: layers across, heads down, a strip for each width."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from kvreuse.kv.codec.calibration import WIDTHS, Calibration
from kvreuse.ops.batch import Float32Array
from kvreuse.shape import KINDS

EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Errors at which the colour changes: eight colours."""
LIGHT = ("#f2f6fb", "#dbe8f6", "#bcd5ee", "#94bce2", "#669dd2", "#3f7cba", "#245a96", "#123a68")
DARK = ("#1b2430", "#20344a", "#274867", "#2f5f88", "#3d7cae", "#5b9bcd", "#8cbde4", "#c9e2f7")

LEFT, TOP, WIDTH, GAP = 104, 64, 880, 34
CELL_HEIGHT, LARGEST_CELL = 16, 28

STYLE = """
text { font: 12px system-ui, sans-serif; fill: var(--ink) }
.title { font-weight: 600; font-size: 14px } .dim { fill: var(--dim) }
.mark { font-size: 9px; font-weight: 600; text-anchor: middle }
.end { text-anchor: end } .middle { text-anchor: middle }
"""


def heat_map(calibration: Calibration, title: str) -> str:
    """An SVG of ``calibration.errors``, for light and dark pages; numbers are in its tooltips.

    Where ``auto`` is wider than int4, the cell of int4 says how many bits it has.
    """
    errors = calibration.errors
    assert errors is not None
    layers, heads = errors.shape[1], errors.shape[3]
    cell = min(LARGEST_CELL, (WIDTH - LEFT - 16) / layers)
    parts, y = [], float(TOP)
    for width in (2, 1):
        for kind in range(2):
            label = f"{WIDTHS[width]} {KINDS[kind]}s"
            marks = calibration.widths if width == 2 else None
            parts.append(
                _strip(
                    errors[width - 1, :, kind],
                    None if marks is None else marks[:, kind],
                    label=label,
                    y=y,
                    cell=cell,
                )
            )
            y += heads * CELL_HEIGHT + GAP
    parts.append(_legend(y))
    height = y + 40
    head = (
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>'
        f'<text class="dim" x="{LEFT}" y="40">Error added to the residual stream, layers across, '
        "KV heads down; a number: bits that auto uses instead of 4</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{_colours()}{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="var(--page)"/>\n{head}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _strip(
    errors: Float32Array, marks: np.ndarray | None, *, label: str, y: float, cell: float
) -> str:
    """Cells of errors [L, H], a row for each head."""
    layers, heads = errors.shape
    middle = y + heads * CELL_HEIGHT / 2 + 4
    out = [f'<text class="end" x="{LEFT - 10}" y="{middle:.1f}">{label}</text>']
    for layer in range(layers):
        x = LEFT + layer * cell
        for head in range(heads):
            top, colour = y + head * CELL_HEIGHT, _colour(float(errors[layer, head]))
            out.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{cell - 1:.1f}" '
                f'height="{CELL_HEIGHT - 1}" rx="2" fill="var(--c{colour})">'
                f"<title>layer {layer}, head {head}: {errors[layer, head]:.2%}</title></rect>"
            )
            if marks is not None and marks[layer, head] != 2:
                bits = 8 if marks[layer, head] == 1 else 16
                ink = "light" if colour > len(LIGHT) // 2 else "ink"
                out.append(
                    f'<text class="mark" x="{x + (cell - 1) / 2:.1f}" y="{top + 11:.1f}" '
                    f'style="fill:var(--{ink})">{bits}</text>'
                )
        if layer % 5 == 0:
            below = y + heads * CELL_HEIGHT + 12
            out.append(
                f'<text class="dim middle" x="{x + cell / 2:.1f}" y="{below:.1f}">{layer}</text>'
            )
    return "".join(out)


def _legend(y: float) -> str:
    bounds = ["", *(f"{edge:.1%}".replace(".0%", "%") for edge in EDGES)]
    out = [f'<text class="end" x="{LEFT - 10}" y="{y + 12:.1f}">error</text>']
    for i, bound in enumerate(bounds):
        x = LEFT + i * 56
        out.append(
            f'<rect x="{x}" y="{y:.1f}" width="55" height="15" fill="var(--c{i})"/>'
            f'<text class="dim middle" x="{x}" y="{y + 28:.1f}">{bound}</text>'
        )
    return "".join(out)


def _colour(error: float) -> int:
    if not math.isfinite(error):
        return len(EDGES)
    return int(np.searchsorted(EDGES, error, side="right"))


def _colours() -> str:
    """The colours as variables, with others where the reader's page is dark."""
    light = "".join(f"--c{i}:{colour};" for i, colour in enumerate(LIGHT))
    dark = "".join(f"--c{i}:{colour};" for i, colour in enumerate(DARK))
    return (
        f":root{{--page:#fff;--ink:#1b2430;--dim:#5b6675;--light:#fff;{light}}}"
        "@media (prefers-color-scheme:dark){:root{--page:#0f141a;--ink:#e6ebf1;--dim:#9aa5b3;"
        f"--light:#0f141a;{dark}}}}}"
    )
