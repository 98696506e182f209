"""Loading a model for a command: timed, and with a bar where it takes longer than a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kvreuse
from kvreuse.cli import text
from kvreuse.cli.progress import progress

if TYPE_CHECKING:
    from kvreuse.llm import LLM


@contextmanager
def loaded(model: str, options: dict[str, Any]) -> Iterator[tuple[LLM, float]]:
    """The model, closed at the end, and the seconds that loading it took.

    Says so where keys and values are rounded without a calibration.
    """
    start = time.perf_counter()
    with progress(f"Loading {model}") as report:
        llm = kvreuse.LLM(model, progress=report, **options)
    with llm:
        seconds = time.perf_counter() - start
        codec = llm.pool.layout.codec
        if not codec.is_plain and codec.calibration is None:
            note = f"keys and values in {codec.describe()}; better with: kvreuse calibrate {model}"
            text.stderr().print(note, style="dim", soft_wrap=True, markup=False)
        yield llm, seconds
