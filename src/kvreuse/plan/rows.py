"""Bytes of one token's row in a plane, for the codecs that a user names."""

from __future__ import annotations

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.kv.codec.planes import Kind

CODECS = UNIFORM
"""The codec of keys and the codec of values, by the name of ``--kv-cache-dtype``."""


def codec_named(name: str) -> str:
    """``name``, if it is a codec whose bytes follow from its name. ConfigError if not."""
    if name not in CODECS:
        known = ", ".join(CODECS)
        raise ConfigError(f"--kv-cache-dtype {name!r} is not a codec to plan (known: {known})")
    return name


def row_bytes(codec: str, kind: Kind, width: int) -> int:
    """Bytes of a row of ``width`` channels."""
    return CODECS[codec][kind == "value"].row_bytes(width, kind)
