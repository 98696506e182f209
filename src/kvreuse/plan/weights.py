"""Bytes that the weights of a checkpoint will take, known before they are read."""

from __future__ import annotations

from collections.abc import Iterable

from kvreuse.model.tensors import StoredTensor
from kvreuse.ops.tensor_types import PACKINGS

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


def packed_bytes(tensors: Iterable[StoredTensor]) -> int:
    """Bytes of all packed matrices: what ``ModelWeights.nbytes`` is once they are loaded."""
    return sum(_matrix_bytes(tensor) for tensor in tensors if len(tensor.shape) == 2)


def vector_bytes(tensors: Iterable[StoredTensor]) -> int:
    """Bytes of all norms and biases, which are kept as float32."""
    return sum(4 * tensor.shape[0] for tensor in tensors if len(tensor.shape) == 1)


def _matrix_bytes(tensor: StoredTensor) -> int:
    packing = PACKINGS[tensor.type]
    rows, columns = tensor.shape
    blocks = -(-rows // COLUMNS)
    if packing.layout in _VALUE_BYTES:
        return blocks * COLUMNS * columns * _VALUE_BYTES[packing.layout]
    pairs = -(-(columns // GROUP) // 2)
    return blocks * pairs * _PAIR_BYTES[packing.layout]
