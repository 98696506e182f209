"""What coarser keys or values of one head do to a model: the error that calibration goes by.

Attention of one KV head, in plain NumPy, on captured queries, keys and values; the engine's own
arithmetic is not imitated, only the rounding of what is stored. The error of its output goes
through the weights behind it, and is taken relative to the residual stream that it is added to:
that is what the layers after it see, so errors of all heads and layers are of one kind.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kvreuse.ops.batch import Float32Array
from kvreuse.shape import ModelShape
from kvreuse.study.quality.capture import LayerRows


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """One KV head of one window of T tokens, with Q positions that are asked from and the g query
    heads that share it."""

    queries: Float32Array
    """[Q * g, hd], times the scale of attention."""
    keys: Float32Array
    """[T, hd]."""
    values: Float32Array
    """[T, hd]."""
    hidden: Float32Array
    """[Q * g, T]: 0 where a query sees a token, -inf elsewhere."""
    softmax: Float32Array
    """[Q * g, T]: the weights as they should be."""
    behind: Float32Array
    """[g * hd, hidden]: what follows the output."""
    residual: Float32Array
    """[Q]: squared lengths of the residual stream."""

    @classmethod
    def of(
        cls, shape: ModelShape, layer: int, rows: LayerRows, head: int, behind: Float32Array
    ) -> Probe:
        """The probe of KV head ``head`` of ``rows``, which are of ``layer``; ``behind`` is
        float32[q_size, hidden] of all heads."""
        group = slice(head * shape.group_size, (head + 1) * shape.group_size)
        scale = np.float32(shape.attention_scale or 1 / math.sqrt(shape.head_dim))
        queries = rows.queries[:, group].reshape(-1, shape.head_dim) * scale
        keys, values = rows.keys[:, head], rows.values[:, head]
        at = np.repeat(rows.query_positions, shape.group_size)[:, None]
        tokens = np.arange(len(keys))[None]
        seen = tokens <= at
        window = shape.layers[layer].window
        if window is not None:
            seen &= tokens > at - window
        hidden = np.where(seen, 0, -np.inf).astype(np.float32)
        scores = np.asarray(queries @ keys.T + hidden, dtype=np.float32)
        channels = slice(group.start * shape.head_dim, group.stop * shape.head_dim)
        return cls(
            queries,
            keys,
            values,
            hidden,
            _softmax(scores),
            behind[channels],
            rows.residual,
        )

    def with_keys(self, keys: Float32Array) -> float:
        """The mean square of the error where ``keys`` are stored instead."""
        apart = _softmax(self.queries @ keys.T + self.hidden)
        apart -= self.softmax
        return self._error(apart @ self.values)

    def with_values(self, values: Float32Array) -> float:
        """The mean square of the error where ``values`` are stored instead."""
        return self._error(self.softmax @ (values - self.values))

    def _error(self, output: Float32Array) -> float:
        added = output.reshape(len(self.residual), -1) @ self.behind
        squares = np.square(added).sum(axis=1)
        return float((squares / self.residual).mean(dtype=np.float64))


def _softmax(scores: Float32Array) -> Float32Array:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
