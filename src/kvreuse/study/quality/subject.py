"""A model to be measured: its weights once, and a pool with a decoder for each codec."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from kvreuse.config import EngineConfig
from kvreuse.kv.codec.codec import KVCodec
from kvreuse.kv.layout import KVLayout
from kvreuse.model.decoder import Decoder
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.model.weights import ModelWeights, Progress, load_weights
from kvreuse.ops.backend import Backend, StepLimits
from kvreuse.ops.batch import BatchInput, Float32Array, Int32Array
from kvreuse.ops.native import NativeBackend
from kvreuse.shape import ModelShape
from kvreuse.text.tokenizer import Tokenizer

LOGITS_BYTES = 64 << 20
"""Memory for the logits of one chunk."""
MOST_ROWS, LEAST_ROWS = 256, 16


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model's weights, packed, and what else is needed to run it. ``digest``: its file's SHA-256,
    in hex."""

    shape: ModelShape
    weights: ModelWeights
    backend: Backend
    tokenizer: Tokenizer
    digest: str

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress | None = None) -> Subject:
        """Read the file. ``config`` names it, and says kernels and threads.

        ``progress`` is called with the bytes of weights that are packed, and of all.

        ModelFileError for a file that cannot be served.
        """
        with open_checkpoint(resolve(config.model)) as checkpoint:
            shape = checkpoint.shape
            tokenizer = Tokenizer(checkpoint.vocabulary)
            digest = checkpoint.digest().hex()
            backend = NativeBackend(config.isa, config.threads)
            weights = load_weights(checkpoint, backend, progress)
        return cls(shape, weights, backend, tokenizer, digest)

    @property
    def rows_at_once(self) -> int:
        """Rows of a chunk: as many as have room for their logits."""
        rows = LOGITS_BYTES // (4 * self.shape.vocab_size)
        return max(LEAST_ROWS, min(MOST_ROWS, rows // 16 * 16))

    def limits(self, context: int) -> StepLimits:
        """Of a decoder for one sequence of ``context`` tokens, all of whose rows sample."""
        rows = self.rows_at_once
        return StepLimits(rows=rows, samples=rows, sequences=1, positions=context)


class Measured:
    """A model with one codec: the logits of every token of a window."""

    def __init__(self, subject: Subject, codec: KVCodec, context: int, page_size: int = 32) -> None:
        """Take pages for one window of ``context`` tokens."""
        self.codec = codec
        layout = KVLayout.of(subject.shape, page_size, codec)
        self.bytes_per_token = layout.bytes_per_token
        self.pool = subject.backend.pool(layout, layout.pages_for(context))
        self._table = np.arange(self.pool.num_pages, dtype=np.int32)
        self._rows_at_once = subject.rows_at_once
        self._decoder = Decoder(
            subject.shape, subject.weights, subject.backend, self.pool, subject.limits(context)
        )

    def logits(self, window: Int32Array) -> Iterator[Float32Array]:
        """float32[t, vocab] of all tokens in order, a chunk at a time, each until the next."""
        for start in range(0, len(window), self._rows_at_once):
            ids = window[start : start + self._rows_at_once]
            yield self._run(ids, start, np.arange(len(ids), dtype=np.int32))

    def decode(self, window: Int32Array) -> None:
        """One step of decoding at the end of a window that :meth:`logits` went through."""
        self._run(window[-1:], len(window) - 1, np.zeros(1, dtype=np.int32))

    def _run(self, ids: Int32Array, start: int, sample_rows: Int32Array) -> Float32Array:
        return self._decoder.run(BatchInput.of_one(ids, start, self._table, sample_rows))

    def close(self) -> None:
        """Give the memory back."""
        del self._decoder
        self.pool.close()
