"""Types of stored tensors: their ids, the bytes that their blocks take, and which are served.

Ids, names and blocks are those of GGML (``ggml_type`` in the GGUF specification, the structures in
``ggml-common.h``), and the kernels know types by these ids. A row of a tensor is a whole number of
blocks; ids that GGML has withdrawn (4, 5, 31 to 33, 36 to 38) are absent.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Block(NamedTuple):
    """``size`` weights of one row are stored together in ``nbytes`` bytes."""

    size: int
    nbytes: int


class Packing(NamedTuple):
    """How the kernels keep a matrix: ``layout`` as ``Matrix.kind`` names it.

    ``change`` says in words how packing changes the weights: ``exact`` where no value changes.
    """

    layout: str
    change: str


class TensorType(enum.IntEnum):
    """The type of a stored tensor. Only matrices of the types in ``PACKINGS`` are served."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41

    @property
    def block_size(self) -> int:
        """Weights in one block: what the length of a row must be a multiple of."""
        return BLOCKS[self].size

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return BLOCKS[self].nbytes


BLOCKS: dict[TensorType, Block] = {
    TensorType.F32: Block(1, 4),
    TensorType.F16: Block(1, 2),
    TensorType.Q4_0: Block(32, 18),
    TensorType.Q4_1: Block(32, 20),
    TensorType.Q5_0: Block(32, 22),
    TensorType.Q5_1: Block(32, 24),
    TensorType.Q8_0: Block(32, 34),
    TensorType.Q8_1: Block(32, 36),  # a type of activations: no file stores it
    TensorType.Q2_K: Block(256, 84),
    TensorType.Q3_K: Block(256, 110),
    TensorType.Q4_K: Block(256, 144),
    TensorType.Q5_K: Block(256, 176),
    TensorType.Q6_K: Block(256, 210),
    TensorType.Q8_K: Block(256, 292),
    TensorType.IQ2_XXS: Block(256, 66),
    TensorType.IQ2_XS: Block(256, 74),
    TensorType.IQ3_XXS: Block(256, 98),
    TensorType.IQ1_S: Block(256, 50),
    TensorType.IQ4_NL: Block(32, 18),
    TensorType.IQ3_S: Block(256, 110),
    TensorType.IQ2_S: Block(256, 82),
    TensorType.IQ4_XS: Block(256, 136),
    TensorType.I8: Block(1, 1),
    TensorType.I16: Block(1, 2),
    TensorType.I32: Block(1, 4),
    TensorType.I64: Block(1, 8),
    TensorType.F64: Block(1, 8),
    TensorType.IQ1_M: Block(256, 56),
    TensorType.BF16: Block(1, 2),
    TensorType.TQ1_0: Block(256, 54),
    TensorType.TQ2_0: Block(256, 66),
    TensorType.MXFP4: Block(32, 17),
    TensorType.NVFP4: Block(64, 36),
    TensorType.Q1_0: Block(128, 18),
}

PACKINGS: dict[TensorType, Packing] = {
    TensorType.F32: Packing("f32", "exact"),
    TensorType.F16: Packing("f16", "exact"),
    TensorType.BF16: Packing("bf16", "exact"),
    TensorType.Q4_0: Packing("4-bit", "exact"),
    TensorType.Q4_1: Packing("4-bit with minimum", "exact"),
    TensorType.Q5_0: Packing("8-bit", "exact"),
    TensorType.Q5_1: Packing("8-bit with minimum", "exact"),
    TensorType.Q8_0: Packing("8-bit", "exact"),
    TensorType.Q4_K: Packing("4-bit with minimum", "scales rounded to fp16"),
    TensorType.Q5_K: Packing("8-bit with minimum", "scales rounded to fp16"),
    TensorType.Q6_K: Packing("8-bit", "groups of 16 widened to 32"),
}
"""The types of matrices that the kernels serve."""
MATRIX_TYPES = frozenset(PACKINGS)
VECTOR_TYPES = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16})
"""The types of norms and biases that are served."""
