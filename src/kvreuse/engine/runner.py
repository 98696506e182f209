"""ModelRunner: BatchInput -> copies of pages -> decoder -> logits of the rows that sample."""

from __future__ import annotations

import time

from kvreuse.config import EngineConfig
from kvreuse.errors import RequestError
from kvreuse.kv.pool import PagePool
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.decoder import Decoder, StepLimits
from kvreuse.model.weights import ModelWeights, Progress, load_weights
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.ops.native import Kernels, open_kernels
from kvreuse.shape import ModelShape


class ModelRunner:
    """Runs batches of a model on the kernels; the ``Runner`` of the engine.

    ``load_seconds`` is the time that repacking the weights took.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: ModelWeights,
        kernels: Kernels,
        pool: PagePool,
        limits: StepLimits,
        load_seconds: float = 0.0,
        *,
        grouped: bool = True,
    ) -> None:
        """``grouped``: see :class:`~kvreuse.model.decoder.Decoder`."""
        self.shape = shape
        self.weights = weights
        self.kernels = kernels
        self.load_seconds = load_seconds
        self._pool = pool
        self._limits = limits
        self._decoder = Decoder(
            shape, weights, kernels, pool.layout, pool.data, limits, grouped=grouped
        )

    @property
    def max_num_batched_tokens(self) -> int:
        """Rows that one batch may have."""
        return self._limits.rows

    @property
    def max_num_seqs(self) -> int:
        """Sequences that one batch may have."""
        return self._limits.sequences

    def run(self, batch: BatchInput) -> Float32Array:
        """float32[S, vocab]: the logits of ``sample_rows``, valid until the next run.

        RequestError if more rows sample than the runner was made for, ValueError if the batch has
        a token, page or position that does not exist.
        """
        if len(batch.sample_rows) > self._limits.samples:
            raise RequestError(
                f"{len(batch.sample_rows)} rows ask for logits, at most {self._limits.samples} may"
            )
        for source, destination, _ in batch.copies:
            self._pool.data[destination] = self._pool.data[source]
        return self._decoder.forward(
            batch.ids,
            batch.positions,
            batch.row_seq,
            batch.tables,
            batch.kv_len,
            batch.sample_rows,
        )

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far; a shared read counts once."""
        return self._decoder.page_bytes_read

    def seconds(self) -> dict[str, float]:
        """Seconds spent in the kernels so far, by operation; the rest of a step is Python code."""
        return self._decoder.seconds()


def load_runner(
    checkpoint: Checkpoint,
    shape: ModelShape,
    pool: PagePool,
    config: EngineConfig,
    progress: Progress | None = None,
) -> ModelRunner:
    """Open the kernels, repack the weights, allocate the buffers of the forward pass.

    ``checkpoint`` may be closed afterwards. ``progress`` gets the bytes of weights repacked so far
    and in all. ConfigError for an instruction set or thread count that the machine does not have.
    """
    kernels = open_kernels(config.isa, config.threads)
    begin = time.perf_counter()
    weights = load_weights(checkpoint, kernels, progress)
    seconds = time.perf_counter() - begin
    limits = StepLimits(
        rows=max(config.max_num_batched_tokens, config.max_num_seqs),
        samples=config.max_num_seqs,
        sequences=config.max_num_seqs,
        positions=min(config.model_len(shape.context_length), pool.num_tokens),
    )
    return ModelRunner(shape, weights, kernels, pool, limits, seconds)
