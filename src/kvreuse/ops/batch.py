"""BatchInput: everything that a forward pass needs to know of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Copy = tuple[int, int, int]
"""(source page, destination page, tokens): rows of a page that another one needs as well."""


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
