"""NumPy twins of the kernels: the arithmetic of the engine, written to be read.

Plain arrays in, plain arrays out, one function a kernel. They follow the kernels' order of
operations and roundings (fused multiply-adds and flushed denormals included), so a kernel may be
held to its twin with ``==``. Everything here is slow and independent of the native code.
"""

from kvreuse.kv.codec.floats import exp2, flush, fma, from_bf16, round_bf16, to_bf16, tree16
from kvreuse.ops.reference.attention import attend, scale_queries
from kvreuse.ops.reference.backend import ReferenceBackend
from kvreuse.ops.reference.forward import forward
from kvreuse.ops.reference.linear import embed, linear
from kvreuse.ops.reference.matrices import DenseMatrix, IntegerMatrix, Matrix, matrix
from kvreuse.ops.reference.pages import copy_rows, read_rows, write_rows
from kvreuse.ops.reference.rotary import rope, rope_tables
from kvreuse.ops.reference.rows import QuantizedRows, gelu_mul, quantize_rows, rms_norm, silu_mul
from kvreuse.ops.reference.transform import (
    hadamard,
    restore_values,
    transform_keys,
    transform_queries,
    transform_values,
)

__all__ = [
    "DenseMatrix",
    "IntegerMatrix",
    "Matrix",
    "QuantizedRows",
    "ReferenceBackend",
    "attend",
    "copy_rows",
    "embed",
    "exp2",
    "flush",
    "fma",
    "forward",
    "from_bf16",
    "gelu_mul",
    "hadamard",
    "linear",
    "matrix",
    "quantize_rows",
    "read_rows",
    "restore_values",
    "rms_norm",
    "rope",
    "rope_tables",
    "round_bf16",
    "scale_queries",
    "silu_mul",
    "to_bf16",
    "transform_keys",
    "transform_queries",
    "transform_values",
    "tree16",
    "write_rows",
]
