"""A curve of hit rates against capacities, as SVG: light or dark as its viewer is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 48, 56
_STYLE = """
    svg { color-scheme: light dark; background: #ffffff; color: #1f2328; }
    text { font: 13px system-ui, sans-serif; fill: currentColor; }
    .title { font-size: 15px; font-weight: 600; }
    .grid { stroke: currentColor; stroke-opacity: 0.15; }
    .curve { fill: none; stroke-width: 2; }
    .c0 { stroke: #0969da; fill: #0969da; }
    .c1 { stroke: #bc4c00; fill: #bc4c00; }
    .c2 { stroke: #6e7781; fill: #6e7781; }
    .c3 { stroke: #1a7f37; fill: #1a7f37; }
    .label { stroke: none; }
    @media (prefers-color-scheme: dark) {
      svg { background: #0d1117; color: #e6edf3; }
      .c0 { stroke: #4493f8; fill: #4493f8; }
      .c1 { stroke: #f0883e; fill: #f0883e; }
      .c2 { stroke: #9198a1; fill: #9198a1; }
      .c3 { stroke: #3fb950; fill: #3fb950; }
    }
"""


def curve_svg(title: str, capacities: Sequence[int], rates: Mapping[str, Sequence[float]]) -> str:
    """One line for each name of ``rates``, hit rates from 0 to 1 at ascending ``capacities``."""
    top = _nice_top(max((rate for values in rates.values() for rate in values), default=0.0))
    low, high = math.log(capacities[0]), math.log(capacities[-1])

    def x(capacity: int) -> float:
        part = (math.log(capacity) - low) / (high - low) if high > low else 0.5
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        return HEIGHT - _BOTTOM - rate / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>']
    for step in range(6):
        rate = top * step / 5
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" '
            f'y1="{y(rate):.1f}" y2="{y(rate):.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:.0%}</text>'
        )
    shown = -math.inf
    for capacity in capacities:
        if x(capacity) - shown >= 56:  # so that labels do not touch
            shown = x(capacity)
            parts.append(
                f'<text x="{shown:.1f}" y="{HEIGHT - _BOTTOM + 20}" text-anchor="middle">'
                f"{capacity:,}</text>"
            )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 14}" text-anchor="middle">capacity, blocks</text>'
    )
    heights = _apart([y(values[-1]) for values in rates.values()])
    for number, (name, values) in enumerate(rates.items()):
        places = [(x(c), y(v)) for c, v in zip(capacities, values, strict=True)]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        color = f"c{number % 4}"
        parts.append(f'<polyline class="curve {color}" style="fill: none" points="{line}"/>')
        parts += [
            f'<circle class="{color}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in places
        ]
        parts.append(
            f'<text class="label {color}" style="fill: currentColor" x="{places[-1][0] + 10:.1f}" '
            f'y="{heights[number] + 4:.1f}">{escape(name)} {values[-1]:.1%}</text>'
        )
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(title)}">\n'
        f"  <style>{_STYLE}  </style>\n  {body}\n</svg>\n"
    )


def _nice_top(rate: float) -> float:
    """The end of the axis: five equal steps of whole percents."""
    return max(0.05, math.ceil(rate * 20) / 20)


def _apart(heights: list[float], least: float = 16.0) -> list[float]:
    """``heights`` moved down where labels would lie on one another."""
    moved = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for above, below in itertools.pairwise(order):
        moved[below] = max(moved[below], moved[above] + least)
    return moved
