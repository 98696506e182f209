"""The folders with models: those that ``KVREUSE_MODELS`` names, then the user's cache."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from kvreuse.errors import ModelFileError

FOLDER_VARIABLE = "KVREUSE_MODELS"
SUFFIX = ".gguf"


def model_folders() -> list[Path]:
    """Where models are looked for, in order, each folder once. A folder need not exist.

    The folders of ``$KVREUSE_MODELS`` (separated as in ``$PATH``), then ``kvreuse/models`` in the
    cache folder. Raises ``ModelFileError`` where there is neither.
    """
    named = [Path(part) for part in os.environ.get(FOLDER_VARIABLE, "").split(os.pathsep) if part]
    cache = cache_folder()
    if cache is not None:
        named.append(cache / "kvreuse" / "models")
    if not named:
        raise ModelFileError(f"there is no home folder; set {FOLDER_VARIABLE}")
    return list(dict.fromkeys(named))


def models_folder() -> Path:
    """The folder that ``pull`` writes models of the catalogue to: the first one."""
    return model_folders()[0]


def cache_folder() -> Path | None:
    """``$XDG_CACHE_HOME``, or ``~/.cache`` (XDG Base Directory Specification).

    ``None`` where the user has no home folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():
        return cache
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def is_plain(name: str) -> bool:
    """Whether a name may be looked for in a folder: it must not lead out of the folder."""
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def find(name: str, *, also: str | None = None) -> Path | None:
    """The first file ``name``, ``name.gguf`` or ``also`` in the folders, folder by folder."""
    if not is_plain(name):
        return None
    names = [name, name + SUFFIX, *([also] if also else [])]
    candidates = (folder / file for folder in model_folders() for file in names)
    return next((path for path in candidates if path.is_file()), None)
