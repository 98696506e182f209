"""Models of the Hugging Face Hub by name, ``org/repo:file.gguf``, and where its cache keeps them.

All programs of a machine share this cache, so a file is fetched once for all of them. The guide
"Understand caching" of ``huggingface_hub`` documents its layout::

    models--ORG--REPO/refs/main                   the commit that ``main`` was at
    models--ORG--REPO/snapshots/COMMIT/FILE       a link to its blob
    models--ORG--REPO/blobs/SHA256

This module does not need that package; ``hub_download`` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreuse.model.fetch.folders import SUFFIX, cache_folder, is_plain

REVISION = "main"
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<file>.*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """``repo`` is ``org/repo``, ``file`` a path in it; empty where none was named."""

    repo: str
    file: str

    def __str__(self) -> str:
        """As it is given on a command line."""
        return f"{self.repo}:{self.file}"

    @property
    def storage(self) -> Path:
        """The repository's folder in the cache."""
        return hub_cache() / f"models--{self.repo.replace('/', '--')}"


def parse(name: str) -> HubName | None:
    """``org/repo:file``, or ``org/repo`` alone; ``None`` for any other text."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in match["repo"]:
        return None
    return HubName(match["repo"], match["file"] or "")


def hub_cache() -> Path:
    """The hub's cache folder, by the environment variables that all the hub's programs read."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return _expanded(folder)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    return (cache_folder() or Path("/nonexistent")) / "huggingface" / "hub"


def find(name: HubName) -> Path | None:
    """The file, if the cache has it at the commit that ``main`` was last seen at."""
    if not is_plain(name.file):
        return None
    commit = _commit(name.storage)
    path = name.storage / "snapshots" / commit / name.file
    return path if commit and path.is_file() else None


def cached() -> Iterator[tuple[HubName, Path]]:
    """All GGUF files of the cache, each at the commit that its ``main`` was last seen at."""
    for storage in sorted(hub_cache().glob("models--*--*")):
        repo = storage.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = storage / "snapshots" / _commit(storage)
        for path in sorted(snapshot.rglob(f"*{SUFFIX}")) if _commit(storage) else ():
            yield HubName(repo, path.relative_to(snapshot).as_posix()), path


def _commit(storage: Path) -> str:
    """The commit in ``refs/main``; empty where there is no such file, or no commit in it."""
    try:
        commit = (storage / "refs" / REVISION).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if re.fullmatch(r"\w+", commit) else ""


def _expanded(folder: str) -> Path:
    return Path(os.path.expandvars(folder)).expanduser()
