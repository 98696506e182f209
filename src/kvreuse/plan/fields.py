"""Fields of a config.json, checked as they are read. Whatever is wrong is one clear line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from kvreuse.errors import ModelFileError

MOST = 1 << 24
"""No width, count of heads or of layers is larger."""
LONGEST = 1 << 40
"""No context is longer."""
MOST_LAYERS = 10_000

# What an error about an unknown architecture shows, where it is there.
TELLING = (
    *("model_type", "architectures", "num_hidden_layers", "n_layer", "hidden_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"),
    *("kv_lora_rank", "max_position_embeddings"),
)


class Fields:
    """The fields of one object of a config.json; ``where`` names it in messages.

    Several names are spellings of one field, the first that is there (and not null) counts. Every
    method that reads raises ``ModelFileError`` for a field that is missing and has no default, of
    another kind or out of range.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def count(
        self, *names: str, default: int | None = None, least: int = 1, most: int = MOST
    ) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self.optional(*names, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            self.fail(f"{_names(names)} is missing")
        return default

    def optional(self, *names: str, least: int = 1, most: int = MOST) -> int | None:
        """The same, or None where it is missing."""
        name = next((name for name in names if name in self), None)
        return None if name is None else self._checked(name, self.values[name], least, most)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"'{name}' must be true or false, it is {brief(value)}")
        return value

    def texts(self, name: str, length: int) -> list[str] | None:
        """A list of ``length`` texts, or None where it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(f"'{name}' must be a list of texts, it is {brief(value)}")
        return self._of_length(name, value, length)

    def counts(self, name: str, length: int, least: int = 1) -> list[int] | None:
        """A list of ``length`` whole numbers, or None where it is missing or no list."""
        value = self.values.get(name)
        if not isinstance(value, list):
            return None
        items = [self._checked(name, item, least, MOST) for item in value]
        return self._of_length(name, items, length)

    def inner(self, name: str) -> Fields | None:
        """The fields of an object in this one, or None where it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(f"'{name}' must be an object, it is {brief(value)}")
        return Fields(value, f"{self.where}, '{name}'")

    def listing(self) -> str:
        """What an unknown architecture says of itself."""
        found = [f"{name} {brief(self.values[name])}" for name in TELLING if name in self]
        return ", ".join(found) or f"{len(self.values)} fields, none of them telling"

    def fail(self, message: str) -> NoReturn:
        """Raise ``ModelFileError`` with ``where`` and ``message``."""
        raise ModelFileError(f"{self.where}: {message}")

    def _checked(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)  # JSON has one kind of number
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"'{name}' must be a whole number, it is {brief(value)}")
        if not least <= value <= most:
            self.fail(f"'{name}' is {brief(value)}; it must be from {least} to {most}")
        return value

    def _of_length(self, name: str, value: list[Any], length: int) -> list[Any]:
        if len(value) != length:
            self.fail(f"'{name}' has {len(value)} entries, but there are {length} layers")
        return value


def brief(value: Any) -> str:
    """A value of a file, for a message of one line."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "a number of more than 20 digits"
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else f"{words[:57]}..."


def _names(names: tuple[str, ...]) -> str:
    return " or ".join(f"'{name}'" for name in names)
