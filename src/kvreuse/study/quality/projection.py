"""The weights behind attention, as numbers: what an error of its output does to the residual."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.layout import KVLayout
from kvreuse.model.weights import LayerWeights
from kvreuse.ops.backend import StepLimits
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.study.quality.subject import Subject

ROWS_AT_ONCE = 128


class OutputWeights:
    """Reads the output projections of a model's layers back out of the backend's layouts."""

    def __init__(self, subject: Subject) -> None:
        """Take pages for the rows of a batch; nothing is written to them."""
        self._subject, layout = subject, KVLayout.of(subject.shape)
        self._pool = subject.backend.pool(layout, layout.pages_for(ROWS_AT_ONCE))
        rows = np.arange(ROWS_AT_ONCE, dtype=np.int32)
        table = np.arange(self._pool.num_pages, dtype=np.int32)
        self._batch = BatchInput.of_one(np.zeros_like(rows), 0, table, rows)

    def of(self, layer: LayerWeights) -> Float32Array:
        """float32[q_size, hidden]: what a unit of each input adds to the residual stream.

        Rows of the unit matrix go through the linear, which quantises them without any error.
        Where the sum is normalised before it is added, the weights of that norm are in it.
        """
        shape = self._subject.shape
        limits = StepLimits(ROWS_AT_ONCE, ROWS_AT_ONCE, 1, ROWS_AT_ONCE)
        program = self._subject.backend.program(shape, self._pool, limits)
        x = program.tensor(ROWS_AT_ONCE, shape.q_size)
        y = program.tensor(ROWS_AT_ONCE, shape.hidden_size)
        program.linear("output", layer.output, x, y)
        weights = np.empty((shape.q_size, shape.hidden_size), dtype=np.float32)
        for start in range(0, len(weights), ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, len(weights) - start)
            x.write(np.eye(ROWS_AT_ONCE, len(weights), start, dtype=np.float32))
            program.run(self._batch)
            weights[start : start + rows] = y.read(rows)
        norm = layer.post_attention_norm
        return weights if norm is None else weights * norm
