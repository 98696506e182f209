"""A GGUF file taken apart into what a mutation may change, and put together again without checks.

Layout: see ``kvreuse.model.gguf.header``. Here nothing is checked and nothing is understood but the
borders of values, so that any lie can be written.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of each type of fixed size."""
ALIGNMENT = 32


@dataclasses.dataclass
class Pair:
    """A key and its value as bytes; an array's value starts with its type and count."""

    key: bytes
    kind: int
    value: bytes


@dataclasses.dataclass
class Entry:
    """A tensor of the table; ``offset`` is counted from the start of the data."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclasses.dataclass
class Parts:
    """A whole file. ``counts`` (tensors, keys) replaces the true ones where it is given."""

    pairs: list[Pair]
    entries: list[Entry]
    data: bytearray
    version: int = 3
    counts: tuple[int, int] | None = None

    @classmethod
    def read(cls, path: Path) -> Parts:
        """Take a sound file apart."""
        raw = path.read_bytes()
        version, tensors, keys = struct.unpack_from("<IQQ", raw, 4)
        cursor = _Cursor(raw, 24)
        pairs = []
        for _ in range(keys):
            key, kind = cursor.string(), cursor.u32()
            pairs.append(Pair(key, kind, cursor.value(kind)))
        entries = []
        for _ in range(tensors):
            name = cursor.string()
            dims = [cursor.u64() for _ in range(cursor.u32())]
            entries.append(Entry(name, dims, cursor.u32(), cursor.u64()))
        start = -(-cursor.at // ALIGNMENT) * ALIGNMENT
        return cls(pairs, entries, bytearray(raw[start:]), version)

    def header(self) -> bytes:
        """All but the data, padded to where it begins."""
        tensors, keys = self.counts or (len(self.entries), len(self.pairs))
        parts = [b"GGUF", struct.pack("<I", self.version), _u64(tensors), _u64(keys)]
        for pair in self.pairs:
            parts += [text(pair.key), struct.pack("<I", pair.kind & 0xFFFFFFFF), pair.value]
        for entry in self.entries:
            parts += [text(entry.name), struct.pack("<I", len(entry.dims))]
            parts += [_u64(size) for size in entry.dims]
            parts += [struct.pack("<I", entry.kind & 0xFFFFFFFF), _u64(entry.offset)]
        raw = b"".join(parts)
        return raw + bytes(-len(raw) % ALIGNMENT)

    def build(self) -> bytearray:
        """The bytes of the file."""
        return bytearray(self.header()) + self.data

    def find(self, key: str) -> Pair | None:
        """The pair of a key."""
        return next((pair for pair in self.pairs if pair.key == key.encode()), None)


def text(raw: bytes) -> bytes:
    """A string: its length, and its bytes."""
    return _u64(len(raw)) + raw


def array(kind: int, items: list[bytes]) -> bytes:
    """The value of an array, of items as bytes; strings without their lengths."""
    body = b"".join(map(text, items) if kind == STRING else items)
    return struct.pack("<IQ", kind, len(items)) + body


def items(value: bytes) -> list[bytes]:
    """The items of an array's value; strings without their lengths."""
    kind, count = struct.unpack_from("<IQ", value)
    cursor = _Cursor(value, 12)
    if kind == STRING:
        return [cursor.string() for _ in range(count)]
    return [cursor.take(SIZES[kind]) for _ in range(count)]


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number & 0xFFFFFFFFFFFFFFFF)


class _Cursor:
    """Reads on and on."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self.at = at

    def take(self, count: int) -> bytes:
        self.at += count
        return self._raw[self.at - count : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> bytes:
        return self.take(self.u64())

    def value(self, kind: int) -> bytes:
        """The bytes of a value, its length and counts included."""
        start = self.at
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.u32(), self.u64()
            for _ in range(count):
                self.value(inner)
        else:
            self.take(SIZES[kind])
        return self._raw[start : self.at]
