"""A figure's files: the picture in both themes as SVG and PNG, the numbers as JSON."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from kvreuse.study.figures import catalogue
from kvreuse.study.figures.record import Record

if TYPE_CHECKING:
    from kvreuse.study.figures.draw.style import Theme

PNG_DPI = 144
PNG_COLOURS = 128


def write(record: Record, folder: Path) -> list[Path]:
    """Write all files of a figure into ``folder``, made where it is missing; the paths.

    Everything is drawn before anything is written.
    """
    catalogue.must_draw()
    from kvreuse.study.figures.draw.style import THEMES  # noqa: PLC0415

    record = record.rounded()
    content = {f"{record.figure}.json": catalogue.as_json(record).encode()}
    for theme in THEMES:
        svg, png = pictures(record, theme)
        content[f"{record.figure}-{theme.name}.svg"] = svg
        content[f"{record.figure}-{theme.name}.png"] = png
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in content]


def pictures(record: Record, theme: Theme) -> tuple[bytes, bytes]:
    """The figure as SVG and as PNG."""
    import matplotlib  # noqa: PLC0415

    from kvreuse.study.figures.draw import style  # noqa: PLC0415

    draw = importlib.import_module(f"{__package__}.draw.{record.figure}").draw
    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(style.settings(theme)):
        figure = draw(record, catalogue.captions_of(record).en, theme)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=PNG_DPI)
    return svg.getvalue(), _with_palette(png)


def _with_palette(png: io.BytesIO) -> bytes:
    """The picture in a palette of its own: few colours, a third of the bytes."""
    from PIL import Image  # noqa: PLC0415

    small = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE).save(
            small, "png", optimize=True
        )
    return small.getvalue()
