"""Weights of a model, packed by a backend from its checkpoint."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ModelFileError, shown
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.tensors import Role, StoredTensor, Weight
from kvreuse.ops.backend import Backend, Matrix, SourceMatrix
from kvreuse.ops.tensor_types import PACKINGS, TensorType
from kvreuse.shape import ModelShape

Vector = npt.NDArray[np.float32]
Matrices = tuple[Matrix, ...]
"""Matrices of one linear, whose outputs lie side by side."""
Progress = Callable[[int, int], None]
"""Called with (bytes of matrices repacked so far, bytes of all matrices), as stored."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Outputs of ``qkv`` are queries, keys, values; of ``gate_up`` gate, then up.

    ``qkv_bias`` is float32[q + 2 kv], ``q_norm`` and ``k_norm`` float32[head_dim],
    ``post_attention_norm`` and ``post_ffn_norm`` float32[hidden]; each is None where the model has
    none.
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
    """How the matrices of one tensor type were repacked.

    ``error`` is the largest change of any weight, measured during repacking. It is relative to the
    largest weight of its group, the 32 neighbours in a row that share a scale; groups of zeros do
    not count. 0: no weight has changed.
    """

    type: str
    layout: str
    tensors: int
    file_bytes: int
    error: float


@dataclasses.dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a model. If they are tied, ``embedding`` also is the matrix of ``logits``."""

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
    checkpoint: Checkpoint, backend: Backend, progress: Progress | None = None
) -> ModelWeights:
    """Pack all weights of a checkpoint; ``repacked`` of the result says how.

    The file's memory is given back tensor by tensor. The largest tensors come first, so that the
    peak is little more than the packed size. Raises ``ModelFileError`` for numbers that are not
    finite, and where the checkpoint cannot be served.
    """
    shape = checkpoint.shape
    packer = _Packer(checkpoint, backend, progress)
    embedding = packer.matrix(Weight(Role.EMBEDDING))
    tied = shape.tied_embeddings
    logits = (embedding,) if tied else packer.linear(Weight(Role.LOGITS))
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_load_layer(packer, shape, i) for i in range(shape.num_layers)),
        output_norm=packer.vector(Weight(Role.OUTPUT_NORM)),
        logits=logits,
        repacked=packer.report(),
    )


def _load_layer(packer: _Packer, shape: ModelShape, layer: int) -> LayerWeights:
    def linear(*roles: Role) -> Matrices:
        return packer.linear(*(Weight(role, layer) for role in roles))

    def vector(*roles: Role) -> Vector:
        return np.concatenate([packer.vector(Weight(role, layer)) for role in roles])

    def vector_if(there: bool, *roles: Role) -> Vector | None:
        return vector(*roles) if there else None

    return LayerWeights(
        attention_norm=vector(Role.ATTENTION_NORM),
        qkv=linear(Role.QUERY, Role.KEY, Role.VALUE),
        output=linear(Role.ATTENTION_OUTPUT),
        ffn_norm=vector(Role.FFN_NORM),
        gate_up=linear(Role.GATE, Role.UP),
        down=linear(Role.DOWN),
        qkv_bias=vector_if(shape.qkv_bias, Role.QUERY_BIAS, Role.KEY_BIAS, Role.VALUE_BIAS),
        q_norm=vector_if(shape.qk_norm, Role.QUERY_NORM),
        k_norm=vector_if(shape.qk_norm, Role.KEY_NORM),
        post_attention_norm=vector_if(shape.post_norms, Role.POST_ATTENTION_NORM),
        post_ffn_norm=vector_if(shape.post_norms, Role.POST_FFN_NORM),
    )


class _Packer:
    """Packs tensors of a checkpoint, and keeps the report of it."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, progress: Progress | None) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._progress = progress
        self._total = sum(t.nbytes for t in checkpoint.tensors.values() if len(t.shape) == 2)
        self._repacked: dict[TensorType, Repacked] = {}

    def matrix(self, *weights: Weight) -> Matrix:
        """One packed matrix of tensors of one type, their rows stacked."""
        tensors = [self._checkpoint.tensors[weight] for weight in weights]
        sources = [
            SourceMatrix(self._checkpoint.data(t), int(t.type), *_rows_columns(t), _the(t))
            for t in tensors
        ]
        try:
            matrix = self._backend.pack(sources)
        except ValueError as error:
            raise ModelFileError(f"{self._checkpoint.path}: {error}") from None
        del sources
        for tensor in tensors:
            self._checkpoint.release(tensor)
            self._count(tensor, matrix)
        return matrix

    def linear(self, *weights: Weight) -> Matrices:
        """The matrices in order; neighbours of one type become one packed matrix."""
        runs = itertools.groupby(weights, lambda weight: self._checkpoint.tensors[weight].type)
        return tuple(self.matrix(*run) for _, run in runs)

    def vector(self, weight: Weight) -> Vector:
        """A vector of F32, F16 or BF16 as float32, exactly."""
        tensor = self._checkpoint.tensors[weight]
        values = _floats(self._checkpoint.data(tensor), tensor.type)
        if not np.isfinite(values).all():
            raise ModelFileError(
                f"{self._checkpoint.path}: {_the(tensor)} holds a number that is not finite"
            )
        return values

    def report(self) -> tuple[Repacked, ...]:
        """One entry for each tensor type, that with the most bytes first."""
        return tuple(sorted(self._repacked.values(), key=lambda entry: -entry.file_bytes))

    def _count(self, tensor: StoredTensor, matrix: Matrix) -> None:
        kind = tensor.type
        before = self._repacked.get(kind, Repacked(kind.name, PACKINGS[kind].layout, 0, 0, 0.0))
        self._repacked[kind] = dataclasses.replace(
            before,
            tensors=before.tensors + 1,
            file_bytes=before.file_bytes + tensor.nbytes,
            error=max(before.error, matrix.error),
        )
        if self._progress is not None:
            done = sum(entry.file_bytes for entry in self._repacked.values())
            self._progress(done, self._total)


def _the(tensor: StoredTensor) -> str:
    return f"the tensor {shown(tensor.name)}"


def _rows_columns(tensor: StoredTensor) -> tuple[int, int]:
    rows, columns = tensor.shape
    return rows, columns


def _floats(data: npt.NDArray[np.uint8], kind: TensorType) -> Vector:
    if kind == TensorType.F32:
        return data.view(np.float32).copy()
    if kind == TensorType.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
