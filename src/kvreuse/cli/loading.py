"""Loading what a command works on: a model to serve or to measure, and the text to measure on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kvreuse
from kvreuse.cli import terminal
from kvreuse.cli.flags import Flag, FlagGroup
from kvreuse.cli.terminal import progress
from kvreuse.config import EngineConfig

if TYPE_CHECKING:
    from kvreuse.llm import LLM
    from kvreuse.study.quality.subject import Subject
    from kvreuse.study.quality.texts import Text

MACHINE = FlagGroup(
    name="machine",
    heading="Machine",
    source=EngineConfig,
    skip=frozenset(EngineConfig.__slots__) - {"threads", "isa"},
)
"""The flags of a command that measures a model's quality, for :func:`subject_of`."""

TextFile = Annotated[
    Path | None,
    typer.Option(
        "--text", metavar="FILE", help="UTF-8 text; left out: the help topics that Python has."
    ),
]
"""The flag ``--text``, for :func:`text_of`."""


def engine_flags(*skip: str) -> FlagGroup:
    """The flags of a command that serves a model, without those of the fields in ``skip``."""
    return FlagGroup(
        name="engine",
        heading="Engine",
        source=EngineConfig,
        skip=frozenset({"model", *skip}),
        special={
            "kv_cache_memory": Flag(type=str | None, metavar="SIZE"),
            "kv_cache_dtype": Flag(metavar="DTYPE"),
            "calibration": Flag(metavar="FILE"),
        },
    )


@contextmanager
def loaded(model: str, options: dict[str, Any]) -> Iterator[tuple[LLM, float]]:
    """The model, closed at the end, and the seconds that loading it took.

    Says so where keys and values are rounded without a calibration.
    """
    start = time.perf_counter()
    load = kvreuse.LLM  # imported now: the bar is about the model alone
    with progress(f"Loading {model}") as report:
        llm = load(model, progress=report, **options)
    with llm:
        seconds = time.perf_counter() - start
        codec = llm.pool.layout.codec
        if not codec.is_plain and codec.calibration is None:
            note = f"keys and values in {codec.describe()}; better with: kvreuse calibrate {model}"
            terminal.stderr().print(note, style="dim", soft_wrap=True, markup=False)
        yield llm, seconds


def subject_of(model: str, machine: dict[str, Any]) -> Subject:
    """The model's weights without an engine, to be measured; ``machine`` are EngineConfig's."""
    from kvreuse.study.quality.subject import Subject  # noqa: PLC0415

    config = EngineConfig(model=model, **machine)
    with progress(f"Loading {model}") as report:
        return Subject.load(config, report)


def text_of(path: Path | None) -> Text:
    """The text of a file, or the one that every Python has: its help topics."""
    from kvreuse.study.quality.texts import read_text, standard_text  # noqa: PLC0415

    return standard_text() if path is None else read_text(path)
