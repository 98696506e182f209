"""GGUF files byte by byte, so that a test can lie anywhere in them."""

from __future__ import annotations

import struct

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + shape + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file; ``counts`` of tensors and keys are the true ones unless given."""
    pairs, tensors = pairs or [], tensors or []
    num_tensors, num_keys = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_keys)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data
