"""Checkpoint: a trained model on disk, whatever the format of its files.

Everything above this package reads a model through this interface, and ``open_checkpoint`` in
``open.py`` picks the implementation. Weights are asked for by what they are for (``tensors.py``),
never by a name of a file.

To add an architecture that needs nothing new of the decoder, add one function to the table of each
format that has such files (``gguf/architectures.py``): it turns the file's keys into a ModelShape.
Which tensors there must be, and how they are packed and run, follows from the shape.

To add a file format, write one package with four parts, and name its class in ``open.py``:

* the container: tensors by name, and their bytes;
* a table of architectures, from its configuration to a ``ModelShape``;
* a table of names, from ``Role`` to the name of a tensor, for ``tensors.by_weight``;
* the ``Vocabulary``, as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from kvreuse.model.tensors import StoredTensor, Weight
from kvreuse.shape import ModelShape
from kvreuse.text.vocabulary import Vocabulary


class Checkpoint(Protocol):
    """A model's files, open for reading; a context manager that closes them at the end.

    Opening checks that the files are whole. Everything else is read when it is asked for, so that
    one part can be used (the vocabulary, say) where another is not supported. Each property raises
    ``ModelFileError``, one line that starts with the path, for what cannot be served.
    """

    @property
    def path(self) -> Path:
        """The file or folder, for messages and for its size."""

    @property
    def shape(self) -> ModelShape:
        """The shape of the model. It is checked that all its tensors are there, and no others."""

    @property
    def tensors(self) -> Mapping[Weight, StoredTensor]:
        """Every tensor, in the order of the files. Checked as for ``shape``."""

    def data(self, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, uint8[nbytes], read-only. ``ValueError`` once it is closed."""

    def release(self, tensor: StoredTensor) -> None:
        """Give back the memory of a tensor that has been read; it may be read again."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, and how text becomes tokens. Read anew each time, which takes a moment."""

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja2 sources by name; the ordinary one is ``default``. Empty where there are none."""

    @property
    def generation_defaults(self) -> Mapping[str, float]:
        """Sampling settings that the model's makers advise, by their names in SamplingParams."""

    def digest(self) -> bytes:
        """SHA-256 of all files, 32 bytes: about a second for 1 GB, computed once."""

    def close(self) -> None:
        """Close the files; twice is allowed. What was read stays valid."""

    def __enter__(self) -> Self:
        """``with open_checkpoint(...) as checkpoint`` closes it at the end."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
