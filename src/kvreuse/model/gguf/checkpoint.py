"""GGUFCheckpoint: a model in one GGUF file.

The names of the keys and tensors are those of the GGUF specification and of the writers in the
``gguf`` package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kvreuse.model.gguf.architectures import read_shape
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.names import tensor_name
from kvreuse.model.gguf.vocabulary import read_vocabulary
from kvreuse.model.tensors import Role, StoredTensor, Weight, by_weight, weights_of
from kvreuse.shape import ModelShape
from kvreuse.text.vocabulary import Vocabulary

TEMPLATE = "tokenizer.chat_template"
# What SamplingParams calls a setting -> the key, and what it holds.
SAMPLING: Mapping[str, tuple[str, type[int] | type[float]]] = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "repetition_penalty": ("general.sampling.penalty_repeat", float),
}


class GGUFCheckpoint:
    """A GGUF file as a :class:`~kvreuse.model.checkpoint.Checkpoint`."""

    def __init__(self, path: str | Path) -> None:
        """Map the file and check its header. ``ModelFileError`` as for :class:`GGUFFile`."""
        self._file = GGUFFile(path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def shape(self) -> ModelShape:
        """The shape that the file's keys describe, checked against its tensors."""
        return self._model[0]

    @property
    def tensors(self) -> Mapping[Weight, StoredTensor]:
        """Every tensor, in the order of the header."""
        return self._model[1]

    @functools.cached_property
    def _model(self) -> tuple[ModelShape, Mapping[Weight, StoredTensor]]:
        shape = read_shape(self._file)
        expected = dict(weights_of(shape))
        if shape.rope.scaling == "factors":
            expected[Weight(Role.ROPE_FACTORS)] = (len(shape.rope.factors),)
        return shape, by_weight(self._file.tensors, expected, tensor_name, str(self.path))

    def data(self, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor: a view of the mapped file."""
        return self._file.data(tensor.name)

    def release(self, tensor: StoredTensor) -> None:
        """Tell the system that the memory of a tensor is not needed for now."""
        self._file.release(tensor.name)

    @property
    def vocabulary(self) -> Vocabulary:
        """What the keys under ``tokenizer.ggml`` say."""
        return read_vocabulary(self._file)

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """``tokenizer.chat_template``, and the templates that stand under names of their own."""
        templates = {}
        for key in self._file.metadata:
            if key == TEMPLATE:
                templates["default"] = self._file.get(key, str)
            elif key.startswith(f"{TEMPLATE}."):
                templates[key.removeprefix(f"{TEMPLATE}.")] = self._file.get(key, str)
        return templates

    @property
    def generation_defaults(self) -> Mapping[str, float]:
        """The keys under ``general.sampling`` that the engine has a setting for."""
        return {
            name: self._file.get(key, kind)
            for name, (key, kind) in SAMPLING.items()
            if key in self._file.metadata
        }

    def digest(self) -> bytes:
        """SHA-256 of the file, computed once."""
        return self._file.sha256()

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    def __enter__(self) -> GGUFCheckpoint:
        """``with GGUFCheckpoint(path) as checkpoint`` closes it at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()
