"""From what a user calls a model to what is known of its memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import folders, hub
from kvreuse.model.fetch.source import CATALOGUE, resolve
from kvreuse.model.gguf.container import MAGIC, GGUFFile
from kvreuse.model.gguf.read import read_spec
from kvreuse.ops.backend import Backend
from kvreuse.plan.config_json import SERVED, geometry_of, read_config, shape_of, text_fields
from kvreuse.plan.facts import Fact, facts, find
from kvreuse.plan.fields import Fields
from kvreuse.plan.geometry import Geometry, attention
from kvreuse.plan.gguf_keys import gguf_config
from kvreuse.plan.weights import file_bytes, packed_bytes, vector_bytes
from kvreuse.shape import ModelShape

INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model whose memory is known. ``source`` says where from; sizes in bytes.

    ``weight_bytes`` is None where nothing tells it, ``weights_as`` says what they are. ``shape``
    is None where this engine does not serve the model, and ``unserved`` then says why.
    """

    name: str
    source: str
    geometry: Geometry
    weight_bytes: int | None
    weights_as: str
    shape: ModelShape | None
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
    with GGUFFile(path) as file:
        try:
            spec = read_spec(file)
        except ModelFileError as error:
            reason = str(error).removeprefix(f"{path}: ")
            fields = Fields(gguf_config(file), str(path))
            geometry = geometry_of(fields)
            model_type = file.get("general.architecture", str)
            return PlannedModel(
                name,
                str(path),
                dataclasses.replace(geometry, model_type=model_type),
                file_bytes(file),
                "as in the file",
                None,
                reason,
            )
        weights = packed_bytes(file, backend) + vector_bytes(file)
        return PlannedModel(name, str(path), geometry_of_spec(spec), weights, "packed", spec)


def geometry_of_spec(spec: ModelShape) -> Geometry:
    """The geometry of a model that this engine serves."""
    windows = spec.windows or (None,) * spec.num_layers
    layers = tuple(attention(spec.num_kv_heads, spec.head_dim, window) for window in windows)
    return Geometry(spec.architecture, layers, spec.context_length)


def _of_config(path: Path, name: str, weights: int | None = None) -> PlannedModel:
    config = read_config(path)
    return _of_fields(text_fields(config, str(path)), name, str(path), weights, "as in the folder")


def _of_fact(fact: Fact) -> PlannedModel:
    fields = text_fields(fact.config, f"facts.toml, {fact.name}")
    told = f"as published, {fact.bits:g} bits each"
    return _of_fields(fields, fact.name, f"{fact.source}, known facts", fact.weight_bytes, told)


def _of_fields(
    fields: Fields, name: str, source: str, weights: int | None, weights_as: str
) -> PlannedModel:
    geometry = geometry_of(fields)
    kind = geometry.model_type
    shape = shape_of(fields, geometry)
    reason = "" if kind in SERVED else f"the architecture {kind!r} is not supported"
    return PlannedModel(name, source, geometry, weights, weights_as, shape, reason)


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
