"""What the commands that measure a model's quality have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreuse.cli.flags import FlagGroup
from kvreuse.cli.progress import progress
from kvreuse.config import EngineConfig
from kvreuse.errors import ConfigError

if TYPE_CHECKING:
    from kvreuse.study.quality.subject import Subject
    from kvreuse.study.quality.texts import Text

MACHINE = FlagGroup(
    name="machine",
    heading="Machine",
    source=EngineConfig,
    skip=frozenset(EngineConfig.__slots__) - {"threads", "isa"},
)


def subject_of(model: str, machine: dict[str, Any]) -> Subject:
    """The model's weights, loaded with a bar where that takes its time."""
    from kvreuse.model.fetch.source import resolve  # noqa: PLC0415
    from kvreuse.study.quality.subject import Subject  # noqa: PLC0415

    config = EngineConfig(model=model, **machine)
    with progress(f"Loading {model}") as report:
        return Subject.load(resolve(model), config, report)


def text_of(path: Path | None) -> Text:
    """The text of a file, or the one that every Python brings along."""
    from kvreuse.study.quality.texts import read_text, standard_text  # noqa: PLC0415

    return standard_text() if path is None else read_text(path)


def parse_share(words: str, flag: str) -> float:
    """``0.5%`` or ``0.005`` as 0.005. ConfigError for what is no number above 0."""
    try:
        share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise ConfigError(f"{flag} must be a share above 0, such as 0.5%, got {words!r}")
    return share
