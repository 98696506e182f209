"""The native kernels: the instruction-set paths of this machine, and a team of threads on one."""

from __future__ import annotations

import dataclasses
import os

from kvreuse.errors import ConfigError
from kvreuse.ops._native import (
    Arena,
    Attention,
    Batch,
    Input,
    Kernels,
    KVView,
    Matrix,
    Program,
    Projection,
    Rotary,
    Tensor,
    Workspace,
    cpu_name,
    paths,
)

__all__ = [
    "ARITHMETIC",
    "Arena",
    "Attention",
    "Batch",
    "Input",
    "KVView",
    "Kernels",
    "Matrix",
    "Path",
    "Program",
    "Projection",
    "Rotary",
    "Tensor",
    "Workspace",
    "available_isas",
    "cpu_name",
    "cpu_report",
    "open_kernels",
]

ARITHMETIC = 1
"""Version of the kernels' arithmetic, the same on every path: a change of any bit is a new one."""

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
    return [Path(*path) for path in paths()]


def available_isas() -> list[str]:
    """The paths that run on this machine, best first."""
    return [path.name for path in cpu_report() if path.supported]


def open_kernels(isa: str | None = None, threads: int | None = None) -> Kernels:
    """Kernels on the path ``isa`` with a team of ``threads``, the caller's thread included.

    Without ``isa``: what ``KVREUSE_ISA`` says, else the best path of the machine. Without
    ``threads``: the cores that this process may use. Raises ConfigError for a path that the
    machine lacks, with what it lacks.
    """
    wanted = isa or os.environ.get(ISA_VARIABLE, "")
    try:
        return Kernels(wanted, threads or usable_cores())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
