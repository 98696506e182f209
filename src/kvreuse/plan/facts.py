"""Well-known models by name, so that a plan needs neither a file nor a network."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """What ``facts.toml`` says of one model.

    ``config`` are the fields of its config.json that its memory depends on, ``source`` names the
    repository of the Hugging Face Hub that they are from. ``parameters`` are counted, or what the
    model's name says, ``bits`` those of one as published.
    """

    name: str
    source: str
    parameters: int
    bits: float
    config: Mapping[str, Any]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as published."""
        return int(self.parameters * self.bits / 8)


@functools.cache
def facts() -> Mapping[str, Fact]:
    """All of them, by name."""
    text = resources.files(__package__).joinpath("facts.toml").read_text(encoding="utf-8")
    return {
        name: Fact(
            name,
            entry["source"],
            int(entry["parameters"]),
            float(entry.get("bits", 16)),
            entry["config"],
        )
        for name, entry in tomllib.loads(text).items()
    }


def find(name: str) -> Fact | None:
    """The model of this name, or of this repository, in capitals or not."""
    wanted = name.lower()
    return next(
        (fact for fact in facts().values() if wanted in (fact.name, fact.source.lower())), None
    )
