"""What is done to keys and queries before keys are rounded, from their moments over a text.

* The *constant* of a channel is the mean of its keys after RoPE. Taking it away changes every score
  of a query by the same number, so the softmax stays as it is; what is left has a smaller range
  wherever a bias stands still, that is in the channels that RoPE turns slowly. The mean is over all
  positions up to a horizon, also those that no text was read at: it is the mean before RoPE, turned
  to each of them.
* The *scale* d of a channel divides keys and multiplies queries. The error of a score is about
  |d q|^2 times the variance of rounding, which after a Hadamard rotation grows with |k / d|^2; by
  Cauchy and Schwarz their product is least for d^2 = rms(k) / rms(q), channel by channel. That is
  the *full* scale; a power of it does better where few channels are large, since the rotation
  spreads those evenly. It is tied over the two channels of a RoPE pair, which pass their lengths
  to each other as they turn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvreuse.model.rope import rope_tables
from kvreuse.ops.batch import Float32Array
from kvreuse.shape import ModelShape, RopeSpec
from kvreuse.study.quality.capture import LayerRows, rope_pairs

Float64Array = npt.NDArray[np.float64]

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers of the full scale that are tried for each head."""
LARGEST_SCALE = 16.0
"""How far the full scale of a channel may be from the mean of its head's."""


class Moments:
    """First and second moments of one layer's keys and queries before RoPE.

    ``[kv_heads, head_dim]`` each; ``horizon`` is the number of positions to be ready for.
    """

    def __init__(self, shape: ModelShape, rope: RopeSpec, horizon: int) -> None:
        sizes = shape.num_kv_heads, shape.head_dim
        self._rope, self._horizon = rope, horizon
        self._group_size = shape.group_size
        self._tokens = self._queries = 0
        self._sum, self._squares = np.zeros(sizes), np.zeros(sizes)
        self._query_squares = np.zeros(sizes)

    def add(self, rows: LayerRows) -> None:
        """Count the rows of one more window, captured before RoPE."""
        keys, queries = rows.keys.astype(np.float64), rows.queries.astype(np.float64)
        self._tokens += len(keys)
        self._sum += keys.sum(axis=0)
        self._squares += np.square(keys).sum(axis=0)
        heads = queries.reshape(len(queries), *self._sum.shape[:1], self._group_size, -1)
        self._queries += len(queries) * self._group_size
        self._query_squares += np.square(heads).sum(axis=(0, 2))

    @property
    def constant(self) -> Float32Array:
        """The mean of the keys after RoPE, over all positions before the horizon."""
        return self._mean().astype(np.float32)

    def _mean(self) -> Float64Array:
        cosine, sine = (
            table.mean(axis=0, dtype=np.float64) for table in rope_tables(self._rope, self._horizon)
        )
        first, second = rope_pairs(self._rope)
        still = self._sum / self._tokens
        mean = still.copy()
        x, y = still[..., first], still[..., second]
        mean[..., first], mean[..., second] = x * cosine - y * sine, y * cosine + x * sine
        return mean

    def full_scale(self) -> Float32Array:
        """See the module; the geometric mean over a head's channels is 1."""
        # a pair's length is the same before and after RoPE
        keys = self._tied(self._squares / self._tokens) - self._tied(np.square(self._mean()))
        queries = self._tied(self._query_squares / self._queries)
        usable = (keys > 0) & (queries > 0)
        logs = np.log(np.where(usable, keys, 1) / np.where(usable, queries, 1)) / 4
        logs -= logs.mean(axis=-1, keepdims=True)
        bound = np.log(LARGEST_SCALE)
        return np.exp(np.clip(logs, -bound, bound)).astype(np.float32)

    def _tied(self, squares: Float64Array) -> Float64Array:
        """Mean squares, alike for the two channels of a pair; channels that do not turn stay."""
        first, second = rope_pairs(self._rope)
        out = squares.copy()
        out[..., first] = out[..., second] = (squares[..., first] + squares[..., second]) / 2
        return out
