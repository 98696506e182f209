"""One layer and a step over it of one new token a sequence: what benches call the kernel with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.ops.native import Attention, Batch, Kernels, Tensor, Workspace

UNITS_PER_THREAD = 8


class LayerStep:
    """The last token of every sequence, on random queries, keys and values.

    ``tables`` int32[sequences, pages a sequence] name pages of ``num_pages``; all sequences are
    ``positions`` tokens long, in pages of ``page_size``.
    """

    def __init__(
        self,
        kernels: Kernels,
        attention: Attention,
        tables: npt.NDArray[np.int32],
        *,
        num_pages: int,
        page_size: int,
        positions: int,
        kv_heads: int,
        group_size: int,
        head_dim: int,
        grouped: bool = True,
    ) -> None:
        self._kernels, self._attention = kernels, attention
        count, heads = len(tables), kv_heads * group_size
        self.batch = Batch(
            count,
            1,
            count,
            tables.shape[1],
            page_size,
            num_pages,
            vocabulary=1,
            positions=positions,
            group_size=group_size,
            grouped=grouped,
        )
        self.batch.load(
            np.zeros(count, dtype=np.int32),
            np.full(count, positions - 1, dtype=np.int32),
            np.arange(count, dtype=np.int32),
            tables,
            np.full(count, positions, dtype=np.int32),
            np.zeros(0, dtype=np.int32),
            -(-UNITS_PER_THREAD * kernels.threads // kv_heads),
        )
        width = (heads + 2 * kv_heads) * head_dim
        self._qkv, self.out = Tensor(count, width), Tensor(count, heads * head_dim)
        self._qkv.numpy()[:] = np.random.default_rng(0).standard_normal((count, width))
        self._space = Workspace(
            kernels.threads,
            count,
            64,
            heads * head_dim,
            group_size,
            heads,
            head_dim,
            self.batch.max_partials,
        )

    def run(self) -> None:
        """The step; its result is in ``out``."""
        self._kernels.attend(self._space, self.batch, self._attention, self._qkv, self.out)
