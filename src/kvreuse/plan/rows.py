"""Bytes of one token's row in a plane, for the codecs that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvreuse.errors import ConfigError

Kind = Literal["key", "value"]
PlaneName = Literal["bf16", "int8", "int4"]

CODECS: Mapping[str, tuple[PlaneName, PlaneName]] = {
    "bf16": ("bf16", "bf16"),
    "int8": ("int8", "int8"),
    "int4": ("int4", "int4"),
    "k8v4": ("int8", "int4"),
}
"""The codec of keys and the codec of values, by the name of ``--kv-cache-dtype``."""

_GROUP = 64
"""Channels that share a scale and a minimum in int4."""


def codec_named(name: str) -> str:
    """``name``, if it is a codec whose bytes follow from its name. ConfigError if not."""
    if name not in CODECS:
        known = ", ".join(CODECS)
        raise ConfigError(f"--kv-cache-dtype {name!r} is not a codec to plan (known: {known})")
    return name


def row_bytes(codec: str, kind: Kind, width: int) -> int:
    """Bytes of a row of ``width`` channels.

    * bf16: two bytes a channel
    * int8: a byte a channel, and an fp32 scale
    * int4: two channels a byte, values in whole units of 32; an fp16 scale and minimum a group
    """
    plane = CODECS[codec][kind == "value"]
    if plane == "bf16":
        return 2 * width
    if plane == "int8":
        return width + 4
    codes = -(-width // 2) if kind == "key" else 16 * -(-width // 32)
    return codes + 4 * -(-width // _GROUP)
