"""BatchInput: everything that a forward pass needs to know of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Copy = tuple[int, int, int]
"""(source page, destination page, tokens): the first tokens of a page are copied to another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchInput:
    """Everything a forward pass needs: T token rows of B sequences, of which S rows sample.

    The rows of one sequence are contiguous, in ascending position. The forward pass writes the
    keys and values of every row to pages before attention reads them. The arrays are C-contiguous
    and may be reused by the sender: they are valid until the runner returns.
    """

    ids: Int32Array
    """int32[T]: the tokens."""
    positions: Int32Array
    """int32[T]: their positions in their sequences."""
    row_seq: Int32Array
    """int32[T]: the sequence of each row, an index into ``tables``."""
    tables: Int32Array
    """int32[B, P]: page ids in order of position; unused entries are 0."""
    kv_len: Int32Array
    """int32[B]: tokens of each sequence that are in pages after this step."""
    sample_rows: Int32Array
    """int32[S]: the rows whose logits are wanted, ascending."""
    copies: tuple[Copy, ...] = ()
    """Done before anything else."""

    @classmethod
    def of_one(
        cls, ids: Int32Array, start: int, table: Int32Array, sample_rows: Int32Array
    ) -> BatchInput:
        """Tokens ``ids`` int32[T] of one sequence from position ``start`` on.

        ``table`` is int32[P], its pages; earlier tokens are in them already.
        """
        end = start + len(ids)
        return cls(
            ids=ids,
            positions=np.arange(start, end, dtype=np.int32),
            row_seq=np.zeros(len(ids), dtype=np.int32),
            tables=table[None],
            kv_len=np.array([end], dtype=np.int32),
            sample_rows=sample_rows,
        )
