"""The native backend: kernels on one instruction-set path, and a team of threads."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence

from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.ops import _native
from kvreuse.ops._native import cpu_name
from kvreuse.ops.backend import Matrix, Program, SourceMatrix, StepLimits
from kvreuse.ops.native_program import NativeProgram, program_bytes
from kvreuse.shape import ModelShape

__all__ = [
    "ISA_VARIABLE",
    "NativeBackend",
    "Path",
    "available_isas",
    "cpu_name",
    "cpu_report",
    "usable_cores",
]

ISA_VARIABLE = "KVREUSE_ISA"
"""The environment variable that forces a path."""


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """One instruction-set path. ``missing`` says what the machine lacks for it, if anything."""

    name: str
    supported: bool
    automatic: bool
    missing: str


def cpu_report() -> list[Path]:
    """All paths of this build, best first, as the probe found them."""
    return [Path(*path) for path in _native.paths()]


def available_isas() -> list[str]:
    """The paths that run on this machine, best first."""
    return [path.name for path in cpu_report() if path.supported]


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


class NativeBackend:
    """The kernels in ``native/``; a :class:`~kvreuse.ops.backend.Backend`.

    The threads start when the kernels are first needed: asking for bytes starts none.
    """

    arithmetic = 1
    """The same on every path."""

    def __init__(self, isa: str | None = None, threads: int | None = None) -> None:
        """A team of ``threads``, the caller's included, on the path ``isa``.

        Without ``isa``: what ``KVREUSE_ISA`` says, else the best path of the machine. Without
        ``threads``: the cores that this process may use.
        """
        self._isa = isa or os.environ.get(ISA_VARIABLE, "")
        self.threads = threads or usable_cores()
        self._arena = _native.Arena()

    @functools.cached_property
    def kernels(self) -> _native.Kernels:
        """The kernels, opened at the first use.

        ConfigError for a path or a number of threads that the machine cannot honour.
        """
        try:
            return _native.Kernels(self._isa, self.threads)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def isa(self) -> str:
        """The path that the kernels take."""
        return self.kernels.isa

    def pool(self, layout: KVLayout, num_pages: int) -> PagePool:
        """Pages in host memory."""
        return PagePool(layout, num_pages)

    def pack(self, sources: Sequence[SourceMatrix]) -> Matrix:
        """Repack matrices into the kernels' layouts; all share the backend's huge pages."""
        tensors = [(s.data, s.type, s.rows, s.columns, s.name) for s in sources]
        return self.kernels.pack(tensors, self._arena)

    def program(
        self, shape: ModelShape, pool: PagePool, limits: StepLimits, *, grouped: bool = True
    ) -> Program:
        """A program whose operations run on this backend's threads."""
        return NativeProgram(self.kernels, shape, pool, limits, grouped=grouped)

    def matrix_bytes(self, ggml_type: int, rows: int, columns: int) -> int:
        """Bytes of a packed matrix. ValueError for a type that the kernels do not serve."""
        return _native.packed_bytes(ggml_type, rows, columns)

    def tensor_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a tensor, the padding of its rows included."""
        return _native.Tensor.bytes(rows, columns)

    def program_bytes(self, shape: ModelShape, page_size: int, limits: StepLimits) -> int:
        """Bytes of the working buffers for this backend's number of threads."""
        return program_bytes(shape, page_size, limits, self.threads)
