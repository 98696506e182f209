"""The model files on this machine, under the names that ``resolve`` takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreuse.model.fetch import hub
from kvreuse.model.fetch.folders import SUFFIX, model_folders
from kvreuse.model.fetch.source import CATALOGUE


@dataclass(frozen=True, slots=True)
class Listed:
    """A file. ``name`` is what commands take; ``place`` is its folder, or the hub's cache."""

    name: str
    place: Path
    path: Path


def listed() -> Iterator[Listed]:
    """All GGUF files of the models' folders, in their order, and of the hub's cache.

    A file whose name ``resolve`` finds in an earlier folder is named by its path.
    """
    names = {entry.file: name for name, entry in CATALOGUE.items()}
    taken: set[str] = set()
    for folder in model_folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            short = names.get(path.name, path.stem)
            name = str(path) if short in taken else short
            taken.add(short)
            yield Listed(name, folder, path)
    for hub_name, path in hub.cached():
        yield Listed(str(hub_name), hub.hub_cache(), path)
