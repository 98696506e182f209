"""Bytes that the weights of a GGUF file will take, by its header alone."""

from __future__ import annotations

from kvreuse.model.gguf.container import GGUFFile, TensorInfo
from kvreuse.model.gguf.ggml import PACKINGS
from kvreuse.ops.backend import Backend


def packed_bytes(file: GGUFFile, backend: Backend) -> int:
    """Bytes of all packed matrices: what ``ModelWeights.nbytes`` is once they are loaded.

    A tensor of a type that is not served counts as it lies in the file.
    """
    return sum(_matrix_bytes(t, backend) for t in file.tensors.values() if len(t.shape) == 2)


def vector_bytes(file: GGUFFile) -> int:
    """Bytes of all norms and biases, which are kept as float32."""
    return sum(4 * t.shape[0] for t in file.tensors.values() if len(t.shape) == 1)


def file_bytes(file: GGUFFile) -> int:
    """Bytes of all tensors as they lie in the file."""
    return sum(tensor.nbytes for tensor in file.tensors.values())


def _matrix_bytes(tensor: TensorInfo, backend: Backend) -> int:
    if tensor.type not in PACKINGS:
        return tensor.nbytes
    rows, columns = tensor.shape
    return backend.matrix_bytes(int(tensor.type), rows, columns)
