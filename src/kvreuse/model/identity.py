"""The namespace of a model's pages: everything but the tokens that their bits depend on."""

from __future__ import annotations

import hashlib

from kvreuse.kv.keys import namespace
from kvreuse.kv.layout import KVLayout
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.rope import rope_tables
from kvreuse.shape import ModelShape, RopeSpec

_ROPE_POSITIONS = 4096  # enough that tables which differ anywhere differ here


def namespace_of(file: GGUFFile, spec: ModelShape, layout: KVLayout, arithmetic: int) -> bytes:
    """32 bytes that are equal only where equal tokens have equal pages, in any process.

    ``arithmetic`` is the backend's. The weights enter as the SHA-256 of the whole file: about a
    tenth of a second for 100 MB.
    """
    return namespace(
        weights=file.sha256(),
        spec=repr(spec),
        layout=layout.fingerprint(),
        rope=_rope_digest(spec.rope),
        local_rope=_rope_digest(spec.local_rope) if spec.local_rope else b"",
        arithmetic=arithmetic,
    )


def _rope_digest(rope: RopeSpec) -> bytes:
    """SHA-256 of the tables: they come from the sines and cosines of this machine's libraries."""
    cosines, sines = rope_tables(rope, _ROPE_POSITIONS)
    return hashlib.sha256(cosines.tobytes() + sines.tobytes()).digest()
