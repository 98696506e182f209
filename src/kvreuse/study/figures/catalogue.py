"""The figures by name: how each is measured, what its caption says, the files it is written to."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvreuse.errors import ConfigError
from kvreuse.study.figures import growth, memory, pool, prefix, quality
from kvreuse.study.figures.record import Captions, Options, Record

if TYPE_CHECKING:
    from kvreuse.study.figures.draw.style import Theme

PNG_DPI = 144
PNG_COLOURS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A figure: one line on what it shows, its measurement, its caption."""

    about: str
    measure: Callable[[Options], Record]
    captions: Callable[[Record], Captions]


KINDS = {
    "growth": Kind(
        "rows computed, time and memory over the steps, with the cache and without",
        growth.measure,
        growth.captions,
    ),
    "memory": Kind(
        "bytes of keys and values over lengths, batches and codecs, and this machine's limit",
        memory.measure,
        memory.captions,
    ),
    "prefix": Kind(
        "first token and memory with and without prefix caching, over the shared part",
        prefix.measure,
        prefix.captions,
    ),
    "pool": Kind(
        "growing by concatenation against a pool of pages: time, memory, fragmentation",
        pool.measure,
        pool.captions,
    ),
    "quality": Kind(
        "perplexity against bytes for the codecs, from the results of an evaluation",
        quality.measure,
        quality.captions,
    ),
}


def kind(name: str) -> Kind:
    """The figure of a name. ConfigError, with the names there are, for another."""
    if name not in KINDS:
        raise ConfigError(f"there is no figure {name!r} (there are: {', '.join(KINDS)})")
    return KINDS[name]


def must_draw() -> None:
    """ConfigError, with what to install, where matplotlib is missing."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError('figures need matplotlib: pip install "kvreuse[figures]"') from None


def read(path: Path) -> Record:
    """A record that was written before. ConfigError if the file is none, or of no known figure."""
    record = Record.parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
    captions_of(record, str(path))
    return record


def captions_of(record: Record, where: str = "the record") -> Captions:
    """The captions of a record. ConfigError if it lacks what they say."""
    try:
        return kind(record.figure).captions(record)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is no record of the figure {record.figure}") from None


def as_json(record: Record) -> str:
    """The record and its captions as JSON."""
    record = record.rounded()
    found = {**dataclasses.asdict(record), "captions": dataclasses.asdict(captions_of(record))}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def write(record: Record, folder: Path) -> list[Path]:
    """Write the picture in both themes as SVG and PNG, and the numbers as JSON; the paths.

    ``folder`` is made where it is missing. Everything is drawn before anything is written.
    """
    must_draw()
    from kvreuse.study.figures.draw.style import THEMES  # noqa: PLC0415

    record = record.rounded()
    content = {f"{record.figure}.json": as_json(record).encode()}
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
        figure = draw(record, captions_of(record).en, theme)
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
