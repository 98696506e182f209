"""Keys: the metadata of a model under its architecture's prefix, checked as it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from kvreuse.errors import ModelFileError, shown
from kvreuse.model.gguf.container import GGUFFile

WIDTH_MULTIPLE = 32  # of every row of a matrix: the kernels' group
MAX_POSITION = (1 << 31) - 1  # positions are int32


class Keys:
    """The keys ``{architecture}.*`` of a file, named here without the prefix.

    Every method that reads raises ``ModelFileError``, one line, where a key is missing and has no
    default, holds another kind of value, or a value out of range.
    """

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def name(self, suffix: str) -> str:
        """The key in full."""
        return f"{self.architecture}.{suffix}"

    def __contains__(self, suffix: str) -> bool:
        return self.name(suffix) in self.file.metadata

    def raw(self, suffix: str, default: Any = None) -> Any:
        """The value as the file has it, of any kind; ``default`` without the key."""
        return self.file.metadata.get(self.name(suffix), default)

    def count(self, suffix: str, default: int | None = None, at_most: int = MAX_POSITION) -> int:
        """A whole number from 1 to ``at_most``."""
        key = self.name(suffix)
        value = self.file.get(key, int) if default is None else self.file.get(key, int, default)
        if not 0 < value <= at_most:
            self.fail(f"'{key}' is {value}; it must be from 1 to {at_most}")
        return value

    def width(self, suffix: str) -> int:
        """The length of a row of a matrix: a multiple of the kernels' group."""
        value = self.count(suffix)
        if value % WIDTH_MULTIPLE:
            self.fail(
                f"'{self.name(suffix)}' is {value}; it must be a multiple of {WIDTH_MULTIPLE}"
            )
        return value

    def real(self, suffix: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A finite number above ``above``."""
        key = self.name(suffix)
        value = self.file.get(key, float) if default is None else self.file.get(key, float, default)
        if not above < value < math.inf:
            self.fail(f"'{key}' is {value}; it must be above {above:g} and finite")
        return value

    def refuse(self, neutral: Mapping[str, Any]) -> None:
        """Fail where a key has another value than its neutral one; None: where it is there."""
        for suffix, harmless in neutral.items():
            if suffix not in self:
                continue
            value = self.raw(suffix)
            if isinstance(value, np.ndarray) or value != harmless:
                self.fail(f"'{self.name(suffix)}' is {shown(value)}, which is not supported")

    def fail(self, message: str) -> NoReturn:
        """Raise ``ModelFileError`` with the file's name and ``message``."""
        raise ModelFileError(f"{self.file.path}: {message}")
