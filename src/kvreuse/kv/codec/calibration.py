"""Calibration: statistics of a model's keys and values, in one small safetensors file.

Shapes: L layers, H KV heads, ``hd`` channels; in an axis of size 2 keys are 0 and values are 1.
Every array is optional: without constants nothing is subtracted, without scales nothing is scaled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kvreuse.errors import ConfigError
from kvreuse.shape import LayerShape

FORMAT = "kvreuse calibration 1"
WIDTHS = ("bf16", "int8", "int4")
"""Names of the plane codecs by id; an entry of ``Calibration.widths`` is an id."""
COLLAPSE = 0.25
"""A codec that increases perplexity by more than this share is refused for the model."""

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_TENSORS = {
    "constants": np.float32,
    "scales": np.float32,
    "clips": np.float32,
    "widths": np.uint8,
    "errors": np.float32,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Transforms and widths for the keys and values of one model, and the measured loss of quality.

    ConfigError if shapes or numbers are invalid. The last three fields are measurements; no bit of
    a page depends on them.
    """

    model_digest: str
    """SHA-256 of the model's file, in hex."""
    constants: Float32 | None = None
    """float32[L, H, hd]: subtracted from the keys after RoPE."""
    scales: Float32 | None = None
    """float32[L, H, hd], > 0: keys are divided by it, queries multiplied by it."""
    clips: Float32 | None = None
    """float32[L, 2, H], in (0, 1]: the share of a row's range that the integers cover."""
    widths: Bytes | None = None
    """uint8[L, 2, H]: the codec of each plane for ``auto``, an index into WIDTHS."""
    hadamard_keys: bool = True
    hadamard_values: bool = True
    errors: Float32 | None = None
    """float32[2, L, 2, H]: relative error of attention's output at int8 and int4."""
    increases: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Relative increase of perplexity by codec, against bf16, on ``text``."""
    text: str = ""
    """The text it was measured on, in words."""

    def __post_init__(self) -> None:
        """Check all arrays."""
        for name, dtype in _TENSORS.items():
            array = getattr(self, name)
            if array is not None and (array.dtype != dtype or array.ndim not in (3, 4)):
                raise ConfigError(f"calibration: {name} are {array.dtype}{list(array.shape)}")
        layers_heads = {
            shape for name in _TENSORS if (shape := self._layers_heads(name)) is not None
        }
        if len(layers_heads) > 1:
            raise ConfigError("calibration: its arrays have different numbers of layers or heads")
        self._check_values()

    def _layers_heads(self, name: str) -> tuple[int, int] | None:
        array = getattr(self, name)
        if array is None:
            return None
        if name in ("constants", "scales"):
            return array.shape[0], array.shape[1]
        return array.shape[-3], array.shape[-1]

    def _check_values(self) -> None:
        faults = {
            "constants": self.constants is not None and not np.isfinite(self.constants).all(),
            "scales": self.scales is not None
            and not (np.isfinite(self.scales).all() and (self.scales > 0).all()),
            "clips": self.clips is not None and not ((self.clips > 0) & (self.clips <= 1)).all(),
            "widths": self.widths is not None and not (self.widths < len(WIDTHS)).all(),
        }
        if wrong := [name for name, fault in faults.items() if fault]:
            raise ConfigError(f"calibration: {' and '.join(wrong)} out of range")

    @property
    def digest(self) -> bytes:
        """SHA-256 of all fields that the bytes of a page depend on; part of its namespace."""
        digest = hashlib.sha256(f"{FORMAT};{self.model_digest}".encode())
        digest.update(bytes([self.hadamard_keys, self.hadamard_values]))
        for name in ("constants", "scales", "clips", "widths"):
            array = getattr(self, name)
            shape = "-" if array is None else str(array.shape)
            digest.update(f";{name}{shape}=".encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.digest()

    def check_model(self, model_digest: str) -> None:
        """ConfigError if this was made for another model."""
        if self.model_digest != model_digest:
            raise ConfigError(
                f"the calibration is of another model (its file's SHA-256 starts with "
                f"{self.model_digest[:12]}, this one's with {model_digest[:12]}); "
                "make one with: kvreuse calibrate MODEL"
            )

    def check_layers(self, layers: Sequence[LayerShape]) -> None:
        """ConfigError if this was made for other numbers of layers, heads or channels."""
        heads = {layer.kv_heads for layer in layers}
        widths = {layer.key_dim for layer in layers}
        for name in _TENSORS:
            if (found := self._layers_heads(name)) is None:
                continue
            array = getattr(self, name)
            channels = {array.shape[-1]} if name in ("constants", "scales") else widths
            if (found[0], {found[1]}, channels) != (len(layers), heads, widths):
                raise ConfigError(
                    f"the calibration's {name} are of shape {list(array.shape)}, the model has "
                    f"{len(layers)} layers and {_numbers(heads)} KV heads of {_numbers(widths)} "
                    "channels"
                )

    def refusal(self, codec: str) -> str | None:
        """Why ``codec`` is refused for this model, with the measurements; None if it is not."""
        increase = self.increases.get(codec)
        if increase is None or increase <= COLLAPSE:
            return None
        better = sorted(
            (value, name) for name, value in self.increases.items() if value <= COLLAPSE
        )
        rest = ", ".join(f"{name} {value:+.1%}" for value, name in better)
        return (
            f"{codec} keys and values raise this model's perplexity by {increase:.0%} "
            f"({self.text}){f'; {rest}' if rest else ''}; --force-kv-cache-dtype uses it anyway"
        )

    def save(self, path: Path) -> None:
        """Write the file atomically; folders are made. OSError if that fails."""
        tensors = {
            name: np.ascontiguousarray(array)
            for name in _TENSORS
            if (array := getattr(self, name)) is not None
        }
        data = save(tensors, metadata=self._metadata())
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".calibration-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(part).replace(path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    def _metadata(self) -> dict[str, str]:
        """All facts in one entry, since the order of several entries would vary."""
        facts = {
            "model_digest": self.model_digest,
            "hadamard_keys": self.hadamard_keys,
            "hadamard_values": self.hadamard_values,
            "increases": dict(self.increases),
            "text": self.text,
        }
        return {FORMAT: json.dumps(facts, sort_keys=True)}

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. ConfigError if it cannot be read, is damaged, or is not a calibration."""
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                names = set(file.keys())
                tensors = {name: file.get_tensor(name) for name in names & set(_TENSORS)}
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or _damage(path, error)
            raise ConfigError(f"cannot read the calibration {path}: {reason}") from None
        if FORMAT not in metadata or names - set(_TENSORS):
            raise ConfigError(
                f"{path} is not a calibration that this version of kvreuse wrote; "
                "make one with: kvreuse calibrate MODEL"
            )
        try:
            return cls(**_facts(metadata[FORMAT]), **tensors)
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"cannot read the calibration {path}: {_fault(error)}") from None


def _numbers(found: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(found)))


def _damage(path: Path, error: Exception) -> str:
    if not path.exists():
        return "no such file"
    return f"the file is cut off or damaged ({error}); make it again with: kvreuse calibrate MODEL"


def _fault(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error).removeprefix("calibration: ")
    return f"its header is damaged ({error}); make it again with: kvreuse calibrate MODEL"


def _facts(text: str) -> dict[str, Any]:
    """The fields that are not arrays. KeyError, TypeError or ValueError if they are invalid."""
    found = json.loads(text)
    increases = {str(name): float(value) for name, value in dict(found["increases"]).items()}
    if not all(math.isfinite(value) for value in increases.values()):
        raise ValueError("an increase that is not finite")
    facts = {"increases": increases}
    kinds = {"model_digest": str, "text": str, "hadamard_keys": bool, "hadamard_values": bool}
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise TypeError(f"{name} is {found[name]!r}")
        facts[name] = found[name]
    return facts
