"""From what a user calls a model to what is known of its memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import folders, hub
from kvreuse.model.fetch.source import CATALOGUE, resolve
from kvreuse.model.gguf.container import MAGIC, GGUFFile
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.backend import Backend
from kvreuse.plan.config_json import SERVED, cache_shape_of, read_config, shape_of, text_fields
from kvreuse.plan.facts import Fact, facts, find
from kvreuse.plan.fields import Fields
from kvreuse.plan.gguf_keys import gguf_config
from kvreuse.plan.weights import packed_bytes, vector_bytes
from kvreuse.shape import CacheShape

INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model whose memory is known. ``source`` says where from; sizes in bytes.

    ``weight_bytes`` is None where nothing tells it, ``weights_as`` says what they are.
    ``unserved`` says why this engine does not serve the model; it is empty where it does.
    """

    name: str
    source: str
    shape: CacheShape
    weight_bytes: int | None
    weights_as: str
    unserved: str = ""

    @property
    def served(self) -> bool:
        """Whether this engine serves it."""
        return not self.unserved


def find_model(name: str, backend: Backend) -> PlannedModel:
    """The model that ``name`` means: a file, a folder, a name of the facts or of the models here.

    A GGUF file, a config.json, a folder with one of them, a file of the models' folders, a name or
    repository of ``facts.toml``. Weights of a GGUF file that is served count as ``backend`` packs
    them. ModelFileError where it is none, or its memory is not known.
    """
    path = Path(name)
    if _is(path, "dir"):
        return _of_folder(path, backend)
    if _is(path, "file"):
        return _of_config(path, name) if _looks_like_json(path) else _of_gguf(path, name, backend)
    if found := _in_folders(name):
        return _of_gguf(found, name, backend)
    if fact := find(name):
        return _of_fact(fact)
    if (hub_name := hub.parse(name)) and hub_name.file:
        return _of_gguf(resolve(name), name, backend)
    known = ", ".join(facts())
    raise ModelFileError(
        f"{name!r} is neither a GGUF file, a config.json nor a folder with one, "
        f"nor a model known by name ({known})"
    )


def with_weights(model: PlannedModel, nbytes: int) -> PlannedModel:
    """The model with weights of ``nbytes`` bytes, whatever was known of them."""
    return dataclasses.replace(model, weight_bytes=nbytes, weights_as="as given")


def _of_gguf(path: Path, name: str, backend: Backend) -> PlannedModel:
    with open_checkpoint(path) as checkpoint:
        try:
            served = checkpoint.shape
        except ModelFileError as error:
            return _of_unserved_gguf(path, name, str(error).removeprefix(f"{path}: "))
        tensors = checkpoint.tensors.values()
        weights = packed_bytes(tensors, backend) + vector_bytes(tensors)
        return PlannedModel(name, str(path), served, weights, "packed")


def _of_unserved_gguf(path: Path, name: str, reason: str) -> PlannedModel:
    """What the keys of a file say, though this engine does not serve it for ``reason``."""
    with GGUFFile(path) as file:
        shape = cache_shape_of(Fields(gguf_config(file), str(path)))
        shape = dataclasses.replace(shape, architecture=file.get("general.architecture", str))
        nbytes = sum(tensor.nbytes for tensor in file.tensors.values())
    return PlannedModel(name, str(path), shape, nbytes, "as in the file", reason)


def _of_config(path: Path, name: str, weights: int | None = None) -> PlannedModel:
    config = read_config(path)
    return _of_fields(text_fields(config, str(path)), name, str(path), weights, "as in the folder")


def _of_fact(fact: Fact) -> PlannedModel:
    fields = text_fields(fact.config, f"facts.toml, {fact.name}")
    as_published = f"as published, {fact.bits:g} bits each"
    return _of_fields(
        fields, fact.name, f"{fact.source}, known facts", fact.weight_bytes, as_published
    )


def _of_fields(
    fields: Fields, name: str, source: str, weights: int | None, weights_as: str
) -> PlannedModel:
    shape = shape_of(fields)
    kind = shape.architecture
    reason = "" if kind in SERVED else f"the architecture {kind!r} is not supported"
    return PlannedModel(name, source, shape, weights, weights_as, reason)


def _of_folder(folder: Path, backend: Backend) -> PlannedModel:
    """A model's folder as of the hub: config.json, and safetensors where they are there."""
    config = folder / "config.json"
    if _is(config, "file"):
        return _of_config(config, folder.name or str(folder), _safetensors_bytes(folder))
    files = sorted(folder.glob(f"*{folders.SUFFIX}"))
    if len(files) == 1:
        return _of_gguf(files[0], files[0].stem, backend)
    there = f"{len(files)} GGUF files: name one of them" if files else "no GGUF file either"
    raise ModelFileError(f"{folder}: has no config.json, and {there}")


def _safetensors_bytes(folder: Path) -> int | None:
    """Bytes of a folder's weights: what the index says, or the files' sizes; None without any."""
    try:
        index = json.loads((folder / INDEX).read_bytes())
        size = index["metadata"]["total_size"]
        if isinstance(size, int) and size > 0:
            return size
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # no index, or none that says it: the files themselves then
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None


def _looks_like_json(path: Path) -> bool:
    """Whether a file is meant as a config.json: by its name, or because it starts as one."""
    with path.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(MAGIC):
        return False
    return path.suffix == ".json" or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _in_folders(name: str) -> Path | None:
    entry = CATALOGUE.get(name)
    try:
        return folders.find(name, also=entry.file if entry else None)
    except (OSError, ModelFileError):  # a name too long for a path; no home folder
        return None


def _is(path: Path, kind: str) -> bool:
    try:
        return path.is_dir() if kind == "dir" else path.is_file()
    except (OSError, ValueError):  # a name too long for a path, or with a NUL in it
        return False
