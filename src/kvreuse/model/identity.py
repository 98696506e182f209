"""The namespace of a model's pages: everything but the tokens that their bits depend on."""

from __future__ import annotations

import hashlib

from kvreuse.kv.keys import namespace
from kvreuse.kv.layout import KVLayout
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.rope import rope_tables
from kvreuse.shape import RopeSpec

_ROPE_POSITIONS = 4096
"""Positions whose rows are hashed: tables that differ at all differ here."""


def namespace_of(checkpoint: Checkpoint, layout: KVLayout, arithmetic: int) -> bytes:
    """32 bytes that are equal only where equal tokens have equal pages, in any process.

    ``arithmetic`` is the backend's. The weights enter as the SHA-256 of their files (see
    ``Checkpoint.digest``).
    """
    shape = checkpoint.shape
    return namespace(
        weights=checkpoint.digest(),
        spec=repr(shape),
        layout=layout.fingerprint(),
        rope=_rope_digest(shape.rope),
        local_rope=_rope_digest(shape.local_rope) if shape.local_rope else b"",
        arithmetic=arithmetic,
    )


def _rope_digest(rope: RopeSpec) -> bytes:
    """SHA-256 of the tables: sines and cosines depend on this machine's libraries."""
    cosines, sines = rope_tables(rope, _ROPE_POSITIONS)
    return hashlib.sha256(cosines.tobytes() + sines.tobytes()).digest()
