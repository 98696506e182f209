"""GGUFFile: a GGUF file, mapped read-only; its whole header is checked when it is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import mmap
import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ModelFileError, shown
from kvreuse.model.gguf.header import HeaderReader
from kvreuse.model.tensors import StoredTensor
from kvreuse.ops.tensor_types import TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 64
MAX_DIMS = 4

_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list of texts",
    np.ndarray: "a list of numbers",
}
_MISSING = object()
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class TensorInfo(StoredTensor):
    """Where a tensor lies. ``shape`` is in NumPy's order, the reverse of the file's.

    ``offset`` counts from the start of the file, which holds all ``nbytes`` bytes from there.
    """

    offset: int


class GGUFFile:
    """A GGUF file (little-endian, version 2 or 3); a context manager that unmaps it at the end.

    ``metadata`` holds the keys: numbers and texts as Python has them, arrays of texts as lists,
    arrays of numbers as NumPy arrays. ``tensors`` holds the tensors by name. Both stay valid after
    ``close()``.

    Raises ``ModelFileError``, one line, where the file cannot be read, is no GGUF file or is
    damaged: counts and sizes beyond its end, duplicate names, tensors that overlap or are not
    aligned.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        mapping = _open(self.path)
        try:
            reader = HeaderReader(mapping, str(self.path))
            self.version, num_tensors, num_keys = _read_start(reader)
            self.metadata = MappingProxyType(_read_metadata(reader, num_keys))
            alignment = _alignment(reader, self.metadata)
            tensors = _read_tensors(reader, num_tensors, alignment, len(mapping))
            self.tensors = MappingProxyType({tensor.name: tensor for tensor in tensors})
        except BaseException:
            mapping.close()
            raise
        self._digest: bytes | None = None
        self._mapping: mmap.mmap | None = mapping
        # The array and its views own the mapping: the file is unmapped with the last of them.
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor: a 1-D read-only view of the mapping. ``KeyError`` without it."""
        tensor = self.tensors[name]
        if self._bytes is None:
            raise ValueError(f"{self.path} is closed")
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def release(self, name: str) -> None:
        """Give the memory of a tensor back to the system; the tensor may be read again."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if self._mapping is None or advice is None:
            return
        tensor = self.tensors[name]
        begin = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            self._mapping.madvise(advice, begin, end - begin)

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = _MISSING) -> Any:
        """The value of ``key``, of ``kind`` int, float, bool, str, list (of str) or ``np.ndarray``.

        An int is accepted as a float; a bool is not accepted as a number. Raises ``ModelFileError``
        where the value is of another kind, or the key is missing and there is no ``default``.
        """
        value = self.metadata.get(key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise ModelFileError(f"{self.path}: the key {shown(key)} is missing")
            return default
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise ModelFileError(
                f"{self.path}: the key {shown(key)} must hold {_KINDS[kind]}, "
                f"it holds {_KINDS[type(value)]}"
            )
        return value

    def sha256(self) -> bytes:
        """SHA-256 of the whole file, 32 bytes; computed once."""
        if self._bytes is None:
            raise ValueError(f"{self.path} is closed")
        if self._digest is None:
            self._digest = hashlib.sha256(self._bytes.data).digest()
        return self._digest

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of ``data`` if there still is one."""
        self._bytes = None
        self._mapping = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _open(path: Path) -> mmap.mmap:
    """The whole file, mapped read-only. Only regular files are opened: a pipe would block."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{path}: is a folder; give the path of a .gguf file")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(path)!r}: cannot be read: {reason}") from None


def _read_start(reader: HeaderReader) -> tuple[int, int, int]:
    """(version, number of tensors, number of keys)."""
    magic = reader.peek(4)
    if magic != MAGIC:
        raise reader.error(f"is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    reader.skip(4, "the magic")
    version = reader.u32("the version")
    if version not in VERSIONS:
        if version and version & 0xFFFF == 0:
            raise reader.error("is a big-endian GGUF file; convert it to little-endian")
        raise reader.error(f"is GGUF version {version}; versions 2 and 3 are supported")
    tensors = reader.count("tensors", 33, MAX_TENSORS)
    return version, tensors, reader.count("keys", 14, MAX_KEYS)


def _read_metadata(reader: HeaderReader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = reader.string(f"the name of key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise reader.error(f"the header is damaged: the key {shown(key)} is there twice")
        metadata[key] = reader.value(f"the key {shown(key)}")
    return metadata


def _alignment(reader: HeaderReader, metadata: Mapping[str, Any]) -> int:
    """``general.alignment``: a power of two (the specification wants a multiple of 8)."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise reader.error("general.alignment must be a power of two from 8 to 1048576")
    return value


def _read_tensors(reader: HeaderReader, count: int, alignment: int, size: int) -> list[TensorInfo]:
    """All tensors, in the header's order, with absolute offsets, and checked against each other."""
    relative = [_read_tensor(reader, index) for index in range(count)]
    start = -(-reader.position // alignment) * alignment
    tensors = []
    for info in relative:
        if info.offset % alignment:
            raise reader.error(f"the tensor {shown(info.name)} is not aligned to {alignment} bytes")
        offset = start + info.offset
        if (missing := offset + info.nbytes - size) > 0:
            raise reader.error(
                f"the file is cut off: {missing} bytes of {shown(info.name)} are missing"
            )
        tensors.append(dataclasses.replace(info, offset=offset))
    _check_apart(reader, tensors)
    return tensors


def _read_tensor(reader: HeaderReader, index: int) -> TensorInfo:
    """One entry of the header. Its offset counts from the start of the data, not of the file."""
    name = reader.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    what = f"the tensor {shown(name)}"
    num_dims = reader.u32(f"the number of dimensions of {what}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise reader.error(f"{what} has {num_dims} dimensions; 1 to {MAX_DIMS} are supported")
    dims = [reader.u64(f"a dimension of {what}") for _ in range(num_dims)]
    type_id = reader.u32(f"the type of {what}")
    offset = reader.u64(f"the offset of {what}")
    try:
        kind = TensorType(type_id)
    except ValueError:
        raise reader.error(f"{what} has the unknown type {type_id}") from None
    if 0 in dims:
        raise reader.error(f"{what} is empty: its dimensions are {dims}")
    if dims[0] % kind.block_size:
        raise reader.error(
            f"{what} has rows of {dims[0]}, no multiple of {kind.name}'s {kind.block_size}"
        )
    nbytes = math.prod(dims) // kind.block_size * kind.block_bytes
    return TensorInfo(name, kind, tuple(reversed(dims)), nbytes, offset)


def _check_apart(reader: HeaderReader, tensors: list[TensorInfo]) -> None:
    """Check that no two tensors have one name, and that no two share a byte."""
    if len(names := {tensor.name for tensor in tensors}) != len(tensors):
        counts = Counter(tensor.name for tensor in tensors)
        twice = next(name for name in names if counts[name] > 1)
        raise reader.error(f"the header is damaged: the tensor {shown(twice)} is there twice")
    in_order = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in itertools.pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise reader.error(f"the tensors {shown(before.name)} and {shown(after.name)} overlap")
