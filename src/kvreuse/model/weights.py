"""Weights of a model, packed by a backend from its GGUF file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.ggml import PACKINGS, GGMLType
from kvreuse.model.gguf.header import shown
from kvreuse.ops.backend import Backend, Matrix, SourceMatrix
from kvreuse.shape import ModelShape

Vector = npt.NDArray[np.float32]
Matrices = tuple[Matrix, ...]
"""Matrices of one linear, whose outputs lie side by side."""
Progress = Callable[[int, int], None]
"""Called with (bytes of matrices repacked, bytes in all), of the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Outputs of ``qkv`` are queries, keys, values; of ``gate_up`` gate, then up.

    What an architecture lacks is None: ``qkv_bias`` float32[q + 2 kv], ``q_norm`` and ``k_norm``
    float32[head_dim], ``post_attention_norm`` and ``post_ffn_norm`` float32[hidden].
    """

    attention_norm: Vector
    qkv: Matrices
    output: Matrices
    ffn_norm: Vector
    gate_up: Matrices
    down: Matrices
    qkv_bias: Vector | None = None
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    post_attention_norm: Vector | None = None
    post_ffn_norm: Vector | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Repacked:
    """What loading made of the matrices of one tensor type.

    ``error`` is the largest change of any weight, measured while they were repacked and relative to
    the largest weight of its group, the 32 neighbours in a row that share a scale (groups of zeros
    do not count). It is 0 where every weight is what the file says.
    """

    type: str
    layout: str
    tensors: int
    file_bytes: int
    error: float


@dataclasses.dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a model. ``embedding`` and the matrix of ``logits`` are one where they are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    output_norm: Vector
    logits: Matrices
    repacked: tuple[Repacked, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrices."""
        matrices = {id(matrix): matrix.nbytes for matrix in self.matrices()}
        return sum(matrices.values())

    def matrices(self) -> list[Matrix]:
        """Every packed matrix; a tied one comes twice."""
        linears = [self.logits]
        for layer in self.layers:
            linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return [self.embedding, *(matrix for linear in linears for matrix in linear)]


def load_weights(
    file: GGUFFile, shape: ModelShape, backend: Backend, progress: Progress | None = None
) -> ModelWeights:
    """Pack all weights that ``read_spec`` has checked; ``repacked`` of the result says how.

    The file's memory is given back tensor by tensor. The largest tensors come first, so that the
    peak is little more than the packed size. Raises ``ModelFileError`` for numbers that are not
    finite.
    """
    packer = _Packer(file, backend, progress)
    embedding = packer.matrix("token_embd.weight")
    tied = shape.tied_embeddings
    logits = (embedding,) if tied else packer.linear("output.weight")
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_load_layer(packer, shape, f"blk.{i}.") for i in range(shape.num_layers)),
        output_norm=packer.vector("output_norm.weight"),
        logits=logits,
        repacked=packer.report(),
    )


def _load_layer(packer: _Packer, shape: ModelShape, b: str) -> LayerWeights:
    """The layer whose tensors' names begin with ``b``."""

    def vector_if(there: bool, *names: str) -> Vector | None:
        return np.concatenate([packer.vector(b + name) for name in names]) if there else None

    return LayerWeights(
        attention_norm=packer.vector(b + "attn_norm.weight"),
        qkv=packer.linear(b + "attn_q.weight", b + "attn_k.weight", b + "attn_v.weight"),
        output=packer.linear(b + "attn_output.weight"),
        ffn_norm=packer.vector(b + "ffn_norm.weight"),
        gate_up=packer.linear(b + "ffn_gate.weight", b + "ffn_up.weight"),
        down=packer.linear(b + "ffn_down.weight"),
        qkv_bias=vector_if(shape.qkv_bias, "attn_q.bias", "attn_k.bias", "attn_v.bias"),
        q_norm=vector_if(shape.qk_norm, "attn_q_norm.weight"),
        k_norm=vector_if(shape.qk_norm, "attn_k_norm.weight"),
        post_attention_norm=vector_if(shape.post_norms, "post_attention_norm.weight"),
        post_ffn_norm=vector_if(shape.post_norms, "post_ffw_norm.weight"),
    )


class _Packer:
    """Takes tensors out of a file, and keeps the account of what became of them."""

    def __init__(self, file: GGUFFile, backend: Backend, progress: Progress | None) -> None:
        self._file = file
        self._backend = backend
        self._progress = progress
        self._total = sum(t.nbytes for t in file.tensors.values() if len(t.shape) == 2)
        self._repacked: dict[GGMLType, Repacked] = {}

    def matrix(self, *names: str) -> Matrix:
        """One packed matrix of tensors of one type, their rows stacked."""
        tensors = [self._file.tensors[name] for name in names]
        sources = [
            SourceMatrix(
                self._file.data(t.name), int(t.type), *_rows_columns(t.shape), _the(t.name)
            )
            for t in tensors
        ]
        try:
            matrix = self._backend.pack(sources)
        except ValueError as error:
            raise ModelFileError(f"{self._file.path}: {error}") from None
        del sources
        for tensor in tensors:
            self._file.release(tensor.name)
            self._count(tensor.type, tensor.nbytes, matrix)
        return matrix

    def linear(self, *names: str) -> Matrices:
        """The matrices in order; neighbours of one type become one packed matrix."""
        runs: list[list[str]] = []
        for name in names:
            if runs and self._type(runs[-1][-1]) == self._type(name):
                runs[-1].append(name)
            else:
                runs.append([name])
        return tuple(self.matrix(*run) for run in runs)

    def vector(self, name: str) -> Vector:
        """A vector of F32, F16 or BF16 as float32, exactly."""
        values = _floats(self._file.data(name), self._type(name))
        if not np.isfinite(values).all():
            raise ModelFileError(
                f"{self._file.path}: {_the(name)} holds a number that is not finite"
            )
        return values

    def report(self) -> tuple[Repacked, ...]:
        """One entry for each tensor type, that with the most bytes first."""
        return tuple(sorted(self._repacked.values(), key=lambda entry: -entry.file_bytes))

    def _count(self, kind: GGMLType, nbytes: int, matrix: Matrix) -> None:
        before = self._repacked.get(kind, Repacked(kind.name, PACKINGS[kind].layout, 0, 0, 0.0))
        self._repacked[kind] = dataclasses.replace(
            before,
            tensors=before.tensors + 1,
            file_bytes=before.file_bytes + nbytes,
            error=max(before.error, matrix.error),
        )
        if self._progress is not None:
            done = sum(entry.file_bytes for entry in self._repacked.values())
            self._progress(done, self._total)

    def _type(self, name: str) -> GGMLType:
        return self._file.tensors[name].type


def _the(name: str) -> str:
    return f"the tensor {shown(name)}"


def _rows_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns


def _floats(data: npt.NDArray[np.uint8], kind: GGMLType) -> Vector:
    if kind == GGMLType.F32:
        return data.view(np.float32).copy()
    if kind == GGMLType.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
