"""Record: what a figure was drawn from, as plain values, and how captions say such values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvreuse.errors import ConfigError
from kvreuse.ops import native
from kvreuse.sizes import available_memory

Progress = Callable[[int, int], None]
DIGITS = 5
"""Significant digits of a measured number; more of them are noise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One measurement.

    ``machine`` and ``settings`` say what it was taken on, ``data`` holds the series of the picture,
    ``summary`` the numbers that the caption says. Times are seconds, sizes bytes.
    """

    figure: str
    model: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    data: dict[str, Any]
    summary: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values; floats to five significant digits."""
        plain: dict[str, Any] = _rounded(dataclasses.asdict(self))
        return plain

    def rounded(self) -> Record:
        """The record as its JSON says it, so that pictures are those of the JSON."""
        return Record(**self.as_dict())

    @classmethod
    def parse(cls, text: str, where: str) -> Record:
        """The record that ``text`` is the JSON of. ConfigError, naming ``where``, if it is none."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{where} is not JSON: it must be a record of kvreuse figure"
            ) from None
        wanted = {field.name: field.type for field in dataclasses.fields(cls)}
        for name, kind in wanted.items():
            value = found.get(name) if isinstance(found, dict) else None
            if not isinstance(value, str if kind == "str" else dict):
                raise ConfigError(f"{where} is no record of kvreuse figure: it lacks {name!r}")
        return cls(**{name: found[name] for name in wanted})


@dataclasses.dataclass(frozen=True, slots=True)
class Caption:
    """What a picture shows: ``title`` is its one message, ``text`` says what was measured."""

    title: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Captions:
    """The caption in both languages of the pages; the English one is in the picture as well."""

    en: Caption
    zh: Caption


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How to measure. ConfigError for what makes no sense.

    ``tokens`` is the size of the figure (None: its own), ``repeats`` the runs that medians are
    taken of; no run begins that would not end within ``budget`` seconds. ``results`` is the file
    of an evaluation, which the figure ``quality`` is drawn from.
    """

    model: str
    tokens: int | None = None
    repeats: int = 3
    budget: float = 120.0
    threads: int | None = None
    results: Path | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.tokens is not None and self.tokens < 4:
            raise ConfigError(f"--tokens must be at least 4, got {self.tokens}")
        if self.repeats < 1:
            raise ConfigError(f"--repeats must be at least 1, got {self.repeats}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {self.threads}")
        if not self.budget > 0:
            raise ConfigError(f"--budget must be more than 0 seconds, got {self.budget:g}")

    @property
    def model_name(self) -> str:
        """The model without the folders it lies in."""
        return Path(self.model).stem if Path(self.model).suffix == ".gguf" else self.model

    def say(self, done: int, total: int) -> None:
        """Call ``progress``, if there is one."""
        if self.progress is not None:
            self.progress(done, total)


def machine_facts(threads: int | None) -> dict[str, Any]:
    """What figures are measured on. The memory is what there is for this process, in bytes."""
    backend = native.NativeBackend(threads=threads)
    return {
        "cpu": native.cpu_name(),
        "isa": backend.isa,
        "threads": backend.threads,
        "memory_available": available_memory(),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value


def duration(seconds: float) -> str:
    """A time to three digits: ``4.1 ms``, ``230 ms``, ``12.3 s``."""
    if seconds < 1:
        return f"{three(seconds * 1e3)} ms"
    return f"{three(seconds)} s"


def three(value: float) -> str:
    """A number to three digits, without an exponent: ``0.123``, ``12.3``, ``1,234``."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def factor(value: float) -> str:
    """A factor: ``1.3``, ``4.2``, ``31``."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def medians_of(runs: int) -> str:
    """How often something was measured."""
    return "one run" if runs == 1 else f"medians of {runs} runs"


def medians_of_zh(runs: int) -> str:
    """The same in Chinese."""
    return "只测一轮" if runs == 1 else f"取 {runs} 轮的中位数"
