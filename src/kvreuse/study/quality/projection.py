"""The weights behind attention, as numbers: what an error of its output does to the residual."""

from __future__ import annotations

import numpy as np

from kvreuse.model.weights import LayerWeights
from kvreuse.ops.batch import Float32Array
from kvreuse.ops.native import Input, Tensor, Workspace
from kvreuse.study.quality.subject import Subject

ROWS_AT_ONCE = 128


class OutputWeights:
    """Reads the output projections of a model's layers back out of the kernels' layouts."""

    def __init__(self, subject: Subject) -> None:
        shape = subject.shape
        self._kernels, self._post_norms = subject.kernels, shape.post_norms
        self._inputs, self._outputs = shape.q_size, shape.hidden_size
        self._workspace = Workspace(
            threads=subject.kernels.threads,
            max_rows=ROWS_AT_ONCE,
            max_inputs=shape.q_size,
            query_width=shape.q_size,
            group_size=shape.group_size,
            heads=shape.num_heads,
            head_dim=shape.head_dim,
            max_partials=1,
        )
        self._x = Tensor(ROWS_AT_ONCE, self._inputs)
        self._y = Tensor(ROWS_AT_ONCE, self._outputs)

    def of(self, layer: LayerWeights) -> Float32Array:
        """float32[q_size, hidden]: what a unit of each input adds to the residual stream.

        Rows of the unit matrix go through the linear, which quantises them without any error.
        Where the sum is normalised before it is added, the weights of that norm are in it.
        """
        weights = np.empty((self._inputs, self._outputs), dtype=np.float32)
        x = self._x.numpy()
        for start in range(0, self._inputs, ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, self._inputs - start)
            x[:] = 0
            x[np.arange(rows), np.arange(start, start + rows)] = 1
            self._kernels.linear(
                self._workspace, layer.output, self._x, rows, Input.plain(), self._y, False
            )
            weights[start : start + rows] = self._y.numpy()[:rows, : self._outputs]
        norm = layer.post_attention_norm
        return weights if norm is None else weights * norm
