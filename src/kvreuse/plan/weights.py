"""Bytes that the weights of a checkpoint will take, known before they are read."""

from __future__ import annotations

from collections.abc import Iterable

from kvreuse.model.tensors import StoredTensor
from kvreuse.ops.backend import Backend


def packed_bytes(tensors: Iterable[StoredTensor], backend: Backend) -> int:
    """Bytes of all packed matrices: what ``ModelWeights.nbytes`` is once they are loaded."""
    return sum(_matrix_bytes(tensor, backend) for tensor in tensors if len(tensor.shape) == 2)


def vector_bytes(tensors: Iterable[StoredTensor]) -> int:
    """Bytes of all norms and biases, which are kept as float32."""
    return sum(4 * tensor.shape[0] for tensor in tensors if len(tensor.shape) == 1)


def _matrix_bytes(tensor: StoredTensor, backend: Backend) -> int:
    rows, columns = tensor.shape
    return backend.matrix_bytes(int(tensor.type), rows, columns)
