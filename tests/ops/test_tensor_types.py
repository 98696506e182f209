"""The table of tensor types against that of the ``gguf`` package."""

from __future__ import annotations

import gguf

from kvreuse.ops.tensor_types import BLOCKS, TensorType


def test_every_type_has_the_block_that_the_gguf_package_knows() -> None:
    theirs = {
        int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if kind.name != "Q8_1"  # the package still counts its scales as float32
    }
    ours = {int(kind): (kind.name, *BLOCKS[kind]) for kind in TensorType if kind.name != "Q8_1"}
    assert ours.items() >= theirs.items()


def test_block_properties() -> None:
    assert (TensorType.Q4_1.block_size, TensorType.Q4_1.block_bytes) == (32, 20)
