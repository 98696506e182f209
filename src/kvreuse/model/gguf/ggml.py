"""Tensor types of GGML: their ids in a GGUF file, and the bytes that their blocks take.

Source: the GGUF specification (``ggml_type``) and the block structures in ``ggml-common.h``. A row
of a tensor is a whole number of blocks; withdrawn ids (4, 5, 31 to 33, 36 to 38) are absent.
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

    ``change`` says in words what becomes of its weights: ``exact`` where no value changes.
    """

    layout: str
    change: str


class GGMLType(enum.IntEnum):
    """Type id of a tensor. Knowing a type's size is not serving it: see ``PACKINGS``."""

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


BLOCKS: dict[GGMLType, Block] = {
    GGMLType.F32: Block(1, 4),
    GGMLType.F16: Block(1, 2),
    GGMLType.Q4_0: Block(32, 18),
    GGMLType.Q4_1: Block(32, 20),
    GGMLType.Q5_0: Block(32, 22),
    GGMLType.Q5_1: Block(32, 24),
    GGMLType.Q8_0: Block(32, 34),
    GGMLType.Q8_1: Block(32, 36),  # a type of activations: no file stores it
    GGMLType.Q2_K: Block(256, 84),
    GGMLType.Q3_K: Block(256, 110),
    GGMLType.Q4_K: Block(256, 144),
    GGMLType.Q5_K: Block(256, 176),
    GGMLType.Q6_K: Block(256, 210),
    GGMLType.Q8_K: Block(256, 292),
    GGMLType.IQ2_XXS: Block(256, 66),
    GGMLType.IQ2_XS: Block(256, 74),
    GGMLType.IQ3_XXS: Block(256, 98),
    GGMLType.IQ1_S: Block(256, 50),
    GGMLType.IQ4_NL: Block(32, 18),
    GGMLType.IQ3_S: Block(256, 110),
    GGMLType.IQ2_S: Block(256, 82),
    GGMLType.IQ4_XS: Block(256, 136),
    GGMLType.I8: Block(1, 1),
    GGMLType.I16: Block(1, 2),
    GGMLType.I32: Block(1, 4),
    GGMLType.I64: Block(1, 8),
    GGMLType.F64: Block(1, 8),
    GGMLType.IQ1_M: Block(256, 56),
    GGMLType.BF16: Block(1, 2),
    GGMLType.TQ1_0: Block(256, 54),
    GGMLType.TQ2_0: Block(256, 66),
    GGMLType.MXFP4: Block(32, 17),
    GGMLType.NVFP4: Block(64, 36),
    GGMLType.Q1_0: Block(128, 18),
}

PACKINGS: dict[GGMLType, Packing] = {
    GGMLType.F32: Packing("f32", "exact"),
    GGMLType.F16: Packing("f16", "exact"),
    GGMLType.BF16: Packing("bf16", "exact"),
    GGMLType.Q4_0: Packing("4-bit", "exact"),
    GGMLType.Q4_1: Packing("4-bit with minimum", "exact"),
    GGMLType.Q5_0: Packing("8-bit", "exact"),
    GGMLType.Q5_1: Packing("8-bit with minimum", "exact"),
    GGMLType.Q8_0: Packing("8-bit", "exact"),
    GGMLType.Q4_K: Packing("4-bit with minimum", "scales rounded to fp16"),
    GGMLType.Q5_K: Packing("8-bit with minimum", "scales rounded to fp16"),
    GGMLType.Q6_K: Packing("8-bit", "groups of 16 widened to 32"),
}
"""The types of matrices that the kernels serve."""
