"""Types of the native extension; see native/module.cpp."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def paths() -> list[tuple[str, bool, bool, str]]: ...
def cpu_name() -> str: ...
def packed_bytes(type: int, rows: int, columns: int) -> int: ...

class Tensor:
    def __init__(self, rows: int, columns: int) -> None: ...
    @staticmethod
    def bytes(rows: int, columns: int) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    def numpy(self) -> npt.NDArray[np.float32]: ...
    def read(self, rows: int) -> npt.NDArray[np.float32]: ...
    def write(self, rows: npt.NDArray[np.float32]) -> None: ...

class Arena:
    def __init__(self) -> None: ...

class Matrix:
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> float: ...

class Projection:
    def __init__(self, parts: list[Matrix]) -> None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def parts(self) -> list[Matrix]: ...

class Input:
    @staticmethod
    def plain() -> Input: ...
    @staticmethod
    def silu_mul() -> Input: ...
    @staticmethod
    def gelu_mul() -> Input: ...
    @staticmethod
    def rms_norm(norm: npt.NDArray[np.float32], eps: float) -> Input: ...

class Rotary:
    def __init__(
        self,
        cosines: npt.NDArray[np.float32],
        sines: npt.NDArray[np.float32],
        interleaved: bool,
    ) -> None: ...

class KVView:
    def __init__(
        self,
        pool: npt.NDArray[np.uint8],
        page_size: int,
        layers: int,
        kv_heads: int,
        group_size: int,
        head_dim: int,
        codecs: npt.NDArray[np.int32] | None = None,
        clips: npt.NDArray[np.float32] | None = None,
    ) -> None: ...
    def copy_rows(self, source: int, destination: int, rows: int) -> None: ...

class Attention:
    def __init__(
        self,
        kv: KVView,
        rotary: Rotary,
        layer: int,
        query_scale: float,
        window: int = 0,
        bias: npt.NDArray[np.float32] | None = None,
        q_norm: npt.NDArray[np.float32] | None = None,
        k_norm: npt.NDArray[np.float32] | None = None,
        eps: float = 0.0,
        key_constant: npt.NDArray[np.float32] | None = None,
        key_scale: npt.NDArray[np.float32] | None = None,
        hadamard_keys: bool = False,
        hadamard_values: bool = False,
    ) -> None: ...

class Batch:
    def __init__(
        self,
        rows: int,
        samples: int,
        sequences: int,
        table_pages: int,
        page_size: int,
        num_pages: int,
        vocabulary: int,
        positions: int,
        group_size: int = 1,
        grouped: bool = True,
    ) -> None: ...
    @staticmethod
    def bytes(rows: int, samples: int, sequences: int, table_pages: int, positions: int) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def load(
        self,
        ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        row_seq: npt.NDArray[np.int32],
        tables: npt.NDArray[np.int32],
        kv_len: npt.NDArray[np.int32],
        sample_rows: npt.NDArray[np.int32],
        units_wanted: int,
    ) -> None: ...
    @property
    def items(self) -> int: ...
    @property
    def splits(self) -> int: ...
    @property
    def max_partials(self) -> int: ...
    def tiles_read(self, window: int = 0) -> int: ...

class Workspace:
    def __init__(
        self,
        threads: int,
        max_rows: int,
        max_inputs: int,
        query_width: int,
        group_size: int,
        heads: int,
        head_dim: int,
        max_partials: int,
    ) -> None: ...
    @staticmethod
    def bytes(
        threads: int,
        max_rows: int,
        max_inputs: int,
        query_width: int,
        group_size: int,
        heads: int,
        head_dim: int,
        sequences: int,
        positions: int,
    ) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Kernels:
    def __init__(self, isa: str, threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def pack(
        self,
        tensors: Sequence[
            tuple[npt.NDArray[np.uint8], int, int, int]
            | tuple[npt.NDArray[np.uint8], int, int, int, str]
        ],
        arena: Arena,
    ) -> Matrix: ...
    def embed(self, table: Matrix, batch: Batch, scale: float, x: Tensor) -> None: ...
    def linear(
        self,
        workspace: Workspace,
        projection: Projection,
        x: Tensor,
        rows: int,
        input: Input,
        y: Tensor,
        accumulate: bool,
    ) -> None: ...
    def attend(
        self,
        workspace: Workspace,
        batch: Batch,
        layer: Attention,
        qkv: Tensor,
        out: Tensor,
    ) -> None: ...
    def read_bandwidth(self, bytes: int, repeats: int) -> float: ...
    def int8_peak(self) -> float: ...
    def float_peak(self) -> float: ...
    def fork_join_seconds(self) -> float: ...

class Program:
    def __init__(self, kernels: Kernels, workspace: Workspace, batch: Batch) -> None: ...
    def embed(self, table: Matrix, scale: float, x: Tensor) -> None: ...
    def linear(
        self,
        name: str,
        projection: Projection,
        x: Tensor,
        input: Input,
        y: Tensor,
        accumulate: bool = False,
        sampled: bool = False,
    ) -> None: ...
    def attend(self, layer: Attention, qkv: Tensor, out: Tensor) -> None: ...
    def add_norm(self, y: Tensor, norm: Input, x: Tensor) -> None: ...
    def gather(self, x: Tensor, y: Tensor) -> None: ...
    def run(self) -> None: ...
    @property
    def page_bytes_read(self) -> int: ...
    def seconds(self) -> list[tuple[str, float]]: ...
