"""KVCodec: the encoding of all planes of a page, chosen by name (``--kv-cache-dtype``).

Only this module, the kernels and the configuration know the names of codecs. A codec has for every
layer, head and kind a plane codec and a clip of its range, and for every layer the transform of
keys, queries and values before they are encoded.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ConfigError
from kvreuse.kv.codec import planes
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.floats import Float32
from kvreuse.kv.codec.planes import PLANE_CODECS, PlaneCodec
from kvreuse.shape import Kind, LayerShape

UNIFORM: dict[str, tuple[PlaneCodec, PlaneCodec]] = {
    "bf16": (planes.BF16, planes.BF16),
    "int8": (planes.INT8, planes.INT8),
    "int4": (planes.INT4, planes.INT4),
    "k8v4": (planes.INT8, planes.INT4),
}
"""Codecs with one plane codec for all keys and one for all values: (keys, values)."""

AUTO = "auto"
"""Plane codecs chosen for each layer, head and kind by a calibration."""


class LayerTransform(NamedTuple):
    """The transform of the rows of one layer before they are encoded, in this order.

    Keys: minus ``constant``, divided by ``scale``, then rotated by a block Hadamard matrix. Queries
    are multiplied by ``scale`` and rotated likewise, so that products change only by a term that is
    equal for all keys. Values are rotated; the output of attention is rotated back.
    """

    constant: Float32 | None
    """float32[kv_heads, head_dim]."""
    scale: Float32 | None
    """float32[kv_heads, head_dim], positive."""
    hadamard_keys: bool
    hadamard_values: bool


@dataclasses.dataclass(frozen=True, slots=True)
class KVCodec:
    """How a pool stores keys and values; made by :func:`make_codec`.

    Two codecs are equal if they give equal bytes: calibrations are compared by digest.
    """

    name: str = "bf16"
    key: PlaneCodec = planes.BF16
    """The codec of keys, unless the name is ``auto``."""
    value: PlaneCodec = planes.BF16
    """The codec of values, unless the name is ``auto``."""
    hadamard_keys: bool = False
    hadamard_values: bool = False
    calibration: Calibration | None = dataclasses.field(default=None, compare=False, repr=False)
    digest: bytes = b""
    """The digest of the calibration; empty if there is none."""

    @property
    def is_plain(self) -> bool:
        """Whether rows are stored without a transform, rounded to bf16."""
        return self.name == "bf16"

    def plane(self, layer: int, kind: Kind, head: int) -> PlaneCodec:
        """The codec of one plane."""
        if self.name == AUTO:
            assert self.calibration is not None
            assert self.calibration.widths is not None
            return PLANE_CODECS[int(self.calibration.widths[layer, int(kind == "value"), head])]
        return self.key if kind == "key" else self.value

    def clip(self, layer: int, kind: Kind, head: int) -> float:
        """The share of a row's range that the integers of one plane cover, in (0, 1]."""
        calibration = self.calibration
        if calibration is None or calibration.clips is None:
            return 1.0
        if self.plane(layer, kind, head) is not planes.INT4:  # eight bits need no clip
            return 1.0
        return float(calibration.clips[layer, int(kind == "value"), head])

    def transform(self, layer: int) -> LayerTransform | None:
        """The transform of the rows of a layer before they are encoded; None if there is none."""
        if self.is_plain:
            return None
        constants = scales = None
        if self.calibration is not None:
            constants, scales = self.calibration.constants, self.calibration.scales
        if constants is None and scales is None and not self.hadamard_keys | self.hadamard_values:
            return None
        return LayerTransform(
            None if constants is None else constants[layer],
            None if scales is None else scales[layer],
            self.hadamard_keys,
            self.hadamard_values,
        )

    def describe(self) -> str:
        """The name and the transforms, for messages: ``int4 (calibrated: constant, Hadamard)``."""
        if self.is_plain:
            return self.name
        source = "not calibrated" if self.calibration is None else "calibrated"
        return f"{self.name} ({source}: {self.transforms()})"

    def transforms(self) -> str:
        """The names of the transforms, for messages: ``constant, Hadamard``."""
        given = None if self.is_plain else self.calibration
        parts = []
        if given is not None and given.constants is not None:
            parts.append("constant")
        if given is not None and given.scales is not None:
            parts.append("scale")
        if self.hadamard_keys or self.hadamard_values:
            parts.append("Hadamard")
        return ", ".join(parts) or "no transform"

    def identity(self, ids: npt.NDArray[np.int32]) -> str:
        """A text of everything that encoding depends on; ``ids`` of all planes in page order."""
        if self.is_plain:
            return self.name
        digits = hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
        return (
            f"{self.name},planes={digits},hadamard={self.hadamard_keys:d}{self.hadamard_values:d},"
            f"calibration={self.digest.hex()}"
        )


BF16 = KVCodec()
"""bf16, the default of every pool."""


def make_codec(
    name: str, layers: Sequence[LayerShape], calibration: Calibration | None = None
) -> KVCodec:
    """The codec ``name`` for a model of these layers.

    ``calibration`` has the transforms, the clips, and the plane codecs of ``auto``. Without one the
    integer codecs only rotate keys and values; ``bf16`` ignores it. ConfigError for an unknown
    name, ``auto`` without widths, and a calibration for other layers.
    """
    if name == BF16.name:
        return BF16
    if name not in (*UNIFORM, AUTO):
        raise ConfigError(
            f"--kv-cache-dtype must be one of {', '.join((*UNIFORM, AUTO))}, got {name!r}"
        )
    if calibration is not None:
        calibration.check_layers(layers)
    if name == AUTO and (calibration is None or calibration.widths is None):
        raise ConfigError(
            "--kv-cache-dtype auto needs a calibration with widths of this model: "
            "run kvreuse calibrate first"
        )
    key, value = UNIFORM.get(name, (BF16.key, BF16.value))
    return KVCodec(
        name,
        key,
        value,
        hadamard_keys=calibration is None or calibration.hadamard_keys,
        hadamard_values=calibration is None or calibration.hadamard_values,
        calibration=calibration,
        digest=b"" if calibration is None else calibration.digest,
    )
