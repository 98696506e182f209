"""Backend: packs weights, holds pages, and runs the forward pass that a decoder records on it.

A decoder knows no implementation: it asks a backend for a :class:`Program`, takes tensors from it
and records operations on them, once. Every step then runs the program over the rows of a
:class:`~kvreuse.ops.batch.BatchInput`. Weights and tensors can be used only with the backend that
made them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.shape import Activation, ModelShape, RopeSpec


@dataclasses.dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: rows, rows that sample, sequences, and positions of a sequence."""

    rows: int
    samples: int
    sequences: int
    positions: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SourceMatrix:
    """A matrix as a file stores it: ``data`` uint8, row by row, in blocks of the GGML ``type``.

    ``name`` is for messages.
    """

    data: npt.NDArray[np.uint8]
    type: int
    rows: int
    columns: int
    name: str = "a tensor"


class Matrix(Protocol):
    """A packed weight matrix ``[rows, columns]``: outputs and inputs."""

    @property
    def rows(self) -> int:
        """Outputs, without padding."""

    @property
    def columns(self) -> int:
        """Inputs."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""

    @property
    def error(self) -> float:
        """Largest change of a weight by packing, relative to the largest of its group of 32."""


class Tensor(Protocol):
    """Rows of float32 that a program's operations read and write."""

    @property
    def rows(self) -> int:
        """Rows of the largest step."""

    @property
    def columns(self) -> int:
        """Numbers in a row."""

    def read(self, rows: int) -> Float32Array:
        """float32[rows, columns]: its first rows, valid until the next run."""

    def write(self, rows: Float32Array) -> None:
        """Set its first rows to float32[n, columns]."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMS norm: rows of float32[K] divided by their root mean square, times ``weight``."""

    weight: Float32Array
    eps: float


Prologue = Norm | Activation | None
"""What a linear does to its input first: a norm; or an activation of the first half of each row,
times the second half; or nothing."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Rotary embedding of queries and keys; the tables are float32[positions, dims / 2]."""

    spec: RopeSpec
    cosines: Float32Array
    sines: Float32Array


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """The attention of one layer. Rows of its input are queries, then keys, then values.

    In this order: ``bias`` float32[q + 2 kv] is added; each head of queries and keys is normalised
    with ``q_norm`` and ``k_norm`` float32[head_dim]; both are rotated; what the layout's codec asks
    for is done; keys and values are written to pages; each row attends to the last ``window``
    positions up to its own (None: to all), its scores times ``scale``.
    """

    layer: int
    scale: float
    rotary: Rotary
    window: int | None = None
    bias: Float32Array | None = None
    q_norm: Float32Array | None = None
    k_norm: Float32Array | None = None
    eps: float = 0.0


class Program(Protocol):
    """A forward pass, recorded once; :meth:`run` executes it over whatever rows a batch holds.

    T are the rows of a batch, S those that sample. A row's results depend on no other row, except
    through pages.
    """

    def tensor(self, rows: int, columns: int) -> Tensor:
        """A new tensor for operations of this program."""

    def embed(self, table: Matrix, scale: float, x: Tensor) -> None:
        """``x[T]`` = the rows of ``table`` that the batch's ids name, times ``scale``."""

    def linear(
        self,
        name: str,
        weights: Sequence[Matrix],
        x: Tensor,
        y: Tensor,
        *,
        prologue: Prologue = None,
        accumulate: bool = False,
        sampled: bool = False,
    ) -> None:
        """``y[T]`` = ``prologue(x[T])`` times the matrices, whose outputs lie side by side.

        With ``accumulate`` the product is added to ``y``; with ``sampled`` it is of S rows, not T.
        ``name`` is what its time is counted under.
        """

    def attend(self, attention: Attention, qkv: Tensor, out: Tensor) -> None:
        """``out[T]`` = the attention of ``qkv[T]``, whose keys and values are written to pages."""

    def add_norm(self, y: Tensor, norm: Norm, x: Tensor) -> None:
        """``x[T]`` += ``norm(y[T])``."""

    def gather(self, x: Tensor, y: Tensor) -> None:
        """``y[S]`` = the rows of ``x`` that sample."""

    def run(self, batch: BatchInput) -> None:
        """Do the batch's copies, then the operations in the order in which they were recorded.

        ValueError, before anything is computed, where the batch is larger than the program's
        limits or names a token, page or position that does not exist.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and working buffers."""

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far."""

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, by operation."""


class Backend(Protocol):
    """An implementation of the operations, on one device."""

    @property
    def arithmetic(self) -> int:
        """Names the rounding of all operations: equal only where all results are, bit for bit."""

    def pool(self, layout: KVLayout, num_pages: int) -> PagePool:
        """Pages where the programs of this backend can use them. ConfigError without memory."""

    def pack(self, sources: Sequence[SourceMatrix]) -> Matrix:
        """One matrix of the rows of all sources, which have one type and width.

        All but the last need rows that are a multiple of 16. ValueError for a type that is not
        served, and for numbers that are not finite.
        """

    def program(
        self, shape: ModelShape, pool: PagePool, limits: StepLimits, *, grouped: bool = True
    ) -> Program:
        """An empty program over the pages of ``pool``, for steps up to ``limits``.

        ``grouped``: attention may read pages that sequences share once for all of them instead of
        once for each. The results are equal.
        """

    def matrix_bytes(self, ggml_type: int, rows: int, columns: int) -> int:
        """``nbytes`` of a matrix that :meth:`pack` would make of a source of this GGML type."""

    def tensor_bytes(self, rows: int, columns: int) -> int:
        """What a tensor adds to ``nbytes`` of its program."""

    def program_bytes(self, shape: ModelShape, page_size: int, limits: StepLimits) -> int:
        """``nbytes`` of an empty program."""
