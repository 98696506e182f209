"""Reads the typed values of a GGUF header, never past the end of the file.

Layout (the GGUF specification, versions 2 and 3, little-endian)::

    "GGUF" | u32 version | u64 tensors | u64 keys | keys x (string key, u32 type, value)
           | tensors x (string name, u32 n, n x u64 dim, u32 type, u64 offset) | padding | data

A string is a ``u64`` length and that many bytes of UTF-8; an array is a ``u32`` type, a ``u64``
count and the values. Counts are checked against the bytes left before anything is allocated.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any

import numpy as np

from kvreuse.errors import ModelFileError

BOOL, STRING, ARRAY = 7, 8, 9
# Value type id -> struct format, which is also the NumPy type of an array of them.
NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    10: "<Q",
    11: "<q",
    12: "<d",
}
# Far above any real model, so that reading a damaged file takes neither minutes nor gigabytes.
MAX_STRING_BYTES = 1 << 24
MAX_STRINGS = 1 << 22

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderReader:
    """A cursor over a mapped file. Reading past its end raises ``ModelFileError``."""

    def __init__(self, data: mmap, name: str) -> None:
        self._data = data
        self._size = len(data)
        self._name = name
        self.position = 0

    def error(self, message: str) -> ModelFileError:
        """The error to raise: one line that starts with the file's name."""
        return ModelFileError(f"{self._name}: {message}")

    def skip(self, nbytes: int, what: str) -> int:
        """Step over ``nbytes`` bytes that the file must hold; returns where they start."""
        start = self.position
        if nbytes > self._size - start:
            left = self._size - start
            raise self.error(
                f"the header is cut off or damaged: {what} needs {nbytes} bytes, {left} left"
            )
        self.position = start + nbytes
        return start

    def peek(self, nbytes: int) -> bytes:
        """The next bytes, fewer where the file ends; the cursor stays."""
        return self._data[self.position : self.position + nbytes]

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._data, self.skip(8, what))[0])

    def count(self, what: str, least: int, limit: int) -> int:
        """A ``u64`` number of items: at most ``limit``, and at most as many as the file may hold.

        ``least`` is the smallest size of one, in bytes.
        """
        count = self.u64(what)
        if count > limit or count * least > self._size - self.position:
            left = self._size - self.position
            raise self.error(
                f"the header is damaged: it claims {count} {what}, with {left} bytes left"
            )
        return count

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        """A string of at most ``limit`` bytes."""
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise self.error(
                f"the header is damaged: {what} is {length} bytes long (at most {limit})"
            )
        start = self.skip(length, what)
        return self._text(self._data[start : start + length], what)

    def value(self, what: str) -> Any:
        """A type and a value of it: int, float, bool, str, list of str, NumPy array (a copy)."""
        kind = self.u32(f"the type of {what}")
        if kind in NUMBERS:
            start = self.skip(struct.calcsize(NUMBERS[kind]), what)
            return struct.unpack_from(NUMBERS[kind], self._data, start)[0]
        if kind == BOOL:
            return self._bool(self._data[self.skip(1, what)], what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self._array(what)
        raise self.error(f"the header is damaged: {what} has the unknown type {kind}")

    def _array(self, what: str) -> Any:
        kind = self.u32(f"the item type of {what}")
        if kind == STRING:
            return self._strings(self.count(f"items of {what}", 8, MAX_STRINGS), what)
        if kind in NUMBERS or kind == BOOL:
            dtype = np.dtype(NUMBERS.get(kind, "<B"))
            count = self.count(f"items of {what}", dtype.itemsize, self._size)
            start = self.skip(count * dtype.itemsize, what)
            numbers = np.frombuffer(self._data, dtype, count, start).copy()
            if kind == BOOL:
                self._bool(int(numbers.max(initial=0)), what)
                return numbers.astype(np.bool_)
            return numbers
        raise self.error(
            f"{what} is an array of arrays or of the unknown type {kind}: not supported"
        )

    def _strings(self, count: int, what: str) -> list[str]:
        # Vocabularies are 100,000s of strings: no method calls within the loop.
        data, size, position = self._data, self._size, self.position
        length_at = _U64.unpack_from
        raw: list[bytes] = []
        for _ in range(count):
            start = position + 8
            if start > size:
                raise self.error(
                    f"the header is cut off or damaged: {what} ends after {len(raw)} items"
                )
            position = start + length_at(data, position)[0]
            if position > size:
                raise self.error(
                    f"the header is cut off or damaged: item {len(raw)} of {what} is too long"
                )
            raw.append(data[start:position])
        self.position = position
        try:
            return [item.decode() for item in raw]
        except UnicodeDecodeError:
            return [self._text(item, f"item {i} of {what}") for i, item in enumerate(raw)]

    def _bool(self, byte: int, what: str) -> bool:
        if byte > 1:
            raise self.error(
                f"the header is damaged: {what} must be true or false (1 or 0), found {byte}"
            )
        return byte == 1

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"the header is damaged: {what} is not UTF-8 (byte {error.start})"
            ) from None
