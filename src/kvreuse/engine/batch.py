"""BatchBuilder: makes a BatchInput of requests and the rows that each of them computes."""

from __future__ import annotations

import numpy as np

from kvreuse.engine.request import Request
from kvreuse.kv.sequence import SeqKV
from kvreuse.ops.batch import BatchInput, Copy, Int32Array


class BatchBuilder:
    """Fills arrays that are allocated once, so that a step allocates nothing that outlives it.

    A step of the kernels evicts the interpreter from the CPU's caches, so Python code here costs
    five times what it costs in a loop. So a decode row is written as plain integers, not through
    array operations, and a step that is like the last one reuses its tables and its BatchInput.
    """

    def __init__(
        self, *, max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int, page_size: int
    ) -> None:
        """A table has room for ``max_model_len`` tokens in pages of ``page_size``."""
        max_pages = -(-max_model_len // page_size)
        self._ids = np.empty(max_num_batched_tokens, dtype=np.int32)
        self._positions = np.empty(max_num_batched_tokens, dtype=np.int32)
        self._row_seq = np.empty(max_num_batched_tokens, dtype=np.int32)
        self._kv_len = np.empty(max_num_seqs, dtype=np.int32)
        self._sample_rows = np.empty(max_num_seqs, dtype=np.int32)
        self._tables = np.empty(max_num_seqs * max_pages, dtype=np.int32)
        self._every_position = np.arange(max_model_len, dtype=np.int32)
        self._one_id, self._one_position, self._one_row_seq, self._one_kv_len, self._one_sample = (
            memoryview(whole.data)
            for whole in (
                self._ids,
                self._positions,
                self._row_seq,
                self._kv_len,
                self._sample_rows,
            )
        )
        self.num_rows = 0
        """Rows of this batch."""
        self._last: BatchInput | None = None
        self._built: Int32Array = self._tables[:0].reshape(0, 0)
        self._built_keys: list[tuple[SeqKV, int]] = []
        self.work: list[tuple[Request, int]] = []
        """The requests of this batch, in order, and how many rows each computes."""
        self.sampling: list[Request] = []
        """The requests that get a token from this batch, in order."""

    def clear(self) -> None:
        """Start an empty batch."""
        self.work.clear()
        self.sampling.clear()
        self.num_rows = 0

    def add(self, request: Request, rows: int) -> None:
        """Add the next ``rows`` tokens of ``request``; if its last token is among them, sample."""
        start = request.num_computed_tokens
        end = start + rows
        seq, first = len(self.work), self.num_rows
        last = first + rows
        if rows == 1 and end == request.num_tokens:
            self._one_id[first] = request.last_token
            self._one_position[first] = start
            self._one_row_seq[first] = seq
        else:
            self._ids[first:last] = request.tokens(start, end)
            self._positions[first:last] = self._every_position[start:end]
            self._row_seq[first:last] = seq
        self._one_kv_len[seq] = end
        if end == request.num_tokens:
            self._one_sample[len(self.sampling)] = last - 1
            self.sampling.append(request)
        self.work.append((request, rows))
        self.num_rows = last

    def build(self, copies: tuple[Copy, ...] = ()) -> BatchInput:
        """The batch; its arrays are valid until the next :meth:`clear`."""
        rows, seqs, samples = self.num_rows, len(self.work), len(self.sampling)
        tables, last = self._build_tables(), self._last
        if (
            last is None
            or last.tables is not tables
            or len(last.ids) != rows
            or len(last.sample_rows) != samples
            or last.copies != copies
        ):
            self._last = last = BatchInput(
                ids=self._ids[:rows],
                positions=self._positions[:rows],
                row_seq=self._row_seq[:rows],
                tables=tables,
                kv_len=self._kv_len[:seqs],
                sample_rows=self._sample_rows[:samples],
                copies=copies,
            )
        return last

    def _build_tables(self) -> Int32Array:
        """int32[B, P] with the tables of the batch; P is the length of the longest.

        Writes only rows that do not already hold this version of their table.
        """
        keys = [(kv, kv.version) for request, _ in self.work if (kv := request.kv) is not None]
        if keys == self._built_keys:
            return self._built
        width = max(kv.num_pages for kv, _ in keys)
        if self._built.shape != (len(keys), width):
            self._built = self._tables[: len(keys) * width].reshape(-1, width)
            self._built_keys = []
        for index, key in enumerate(keys):
            if index >= len(self._built_keys) or key != self._built_keys[index]:
                kv, row = key[0], self._built[index]
                row[: kv.num_pages] = kv.table[: kv.num_pages]
                row[kv.num_pages :] = 0
        self._built_keys = keys
        return self._built
