"""Bytes that the weights of a GGUF file will take, by its header alone."""

from __future__ import annotations

from kvreuse.model.gguf.container import GGUFFile, TensorInfo
from kvreuse.model.gguf.ggml import PACKINGS

COLUMNS = 16
"""Rows of a matrix that are packed together (native/kernels.h)."""
GROUP = 32

_VALUE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# Of a pair of groups of 16 rows: integers, then fp16 scales and, where there are any, minima.
_PAIR_BYTES = {
    "4-bit": 2 * 256 + 64,
    "4-bit with minimum": 2 * 256 + 128,
    "8-bit": 2 * 512 + 64,
    "8-bit with minimum": 2 * 512 + 128,
}


def packed_bytes(file: GGUFFile) -> int:
    """Bytes of all packed matrices: what ``ModelWeights.nbytes`` is once they are loaded.

    A tensor of a type that the kernels do not serve counts as it lies in the file.
    """
    return sum(_matrix_bytes(t) for t in file.tensors.values() if len(t.shape) == 2)


def vector_bytes(file: GGUFFile) -> int:
    """Bytes of all norms and biases, which are kept as float32."""
    return sum(4 * t.shape[0] for t in file.tensors.values() if len(t.shape) == 1)


def file_bytes(file: GGUFFile) -> int:
    """Bytes of all tensors as they lie in the file."""
    return sum(tensor.nbytes for tensor in file.tensors.values())


def _matrix_bytes(tensor: TensorInfo) -> int:
    packing = PACKINGS.get(tensor.type)
    if packing is None:
        return tensor.nbytes
    rows, columns = tensor.shape
    blocks = -(-rows // COLUMNS)
    if packing.layout in _VALUE_BYTES:
        return blocks * COLUMNS * columns * _VALUE_BYTES[packing.layout]
    pairs = -(-(columns // GROUP) // 2)
    return blocks * pairs * _PAIR_BYTES[packing.layout]
