"""Queries, keys and values of a text, as attention gets them: taken from the engine's own pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from kvreuse.kv.codec.codec import BF16
from kvreuse.kv.layout import KVLayout
from kvreuse.model.decoder import Decoder
from kvreuse.model.rope import rope_tables
from kvreuse.model.weights import LayerWeights, Vector
from kvreuse.ops.backend import Tensor
from kvreuse.ops.batch import BatchInput, Float32Array, Int32Array
from kvreuse.shape import ModelShape, RopeSpec
from kvreuse.study.quality.subject import Subject


@dataclasses.dataclass(frozen=True, slots=True)
class LayerRows:
    """One layer of one window of T tokens, float32, after bias and norm, and RoPE if wanted.

    ``queries`` [Q, heads, head_dim] are those of the positions ``query_positions`` [Q], not scaled;
    ``keys`` and ``values`` are [T, kv_heads, head_dim].
    """

    query_positions: Int32Array
    queries: Float32Array
    keys: Float32Array
    values: Float32Array
    residual: Float32Array
    """[Q]: the squared length of the residual stream behind this layer, at the queries."""


class CapturingDecoder(Decoder):
    """The forward pass with buffers of each layer's own: ``projected``, queries, keys and values;
    ``residuals``, the residual stream behind it, of the rows that sample."""

    def _record(self) -> None:
        self.projected: list[Tensor] = []
        self.residuals: list[Tensor] = []
        super()._record()

    def _record_layer(self, i: int, layer: LayerWeights) -> None:
        tensors, program = self._tensors, self._program
        tensors["qkv"] = program.tensor(tensors["qkv"].rows, tensors["qkv"].columns)
        self.projected.append(tensors["qkv"])
        super()._record_layer(i, layer)
        self.residuals.append(program.tensor(tensors["last"].rows, tensors["last"].columns))
        program.gather(tensors["x"], self.residuals[i])


class Capture:
    """Runs windows and keeps what attention gets, layer by layer."""

    def __init__(self, subject: Subject, context: int) -> None:
        """Take buffers for windows of at most ``context`` tokens."""
        self._shape, self._weights = subject.shape, subject.weights
        layout = KVLayout.of(subject.shape, codec=BF16)
        self._pool = subject.backend.pool(layout, layout.pages_for(context))
        self._table = np.arange(self._pool.num_pages, dtype=np.int32)
        self._limits = subject.limits(context)
        self._decoder = CapturingDecoder(
            subject.shape, subject.weights, subject.backend, self._pool, self._limits
        )

    def window(
        self, ids: Int32Array, query_positions: Int32Array, start: int | None = 0
    ) -> list[LayerRows]:
        """All layers of one window; queries of ``query_positions`` only, ascending.

        They are turned as if the window began at the position ``start``, which changes no score:
        RoPE is relative. None: they are not turned.
        """
        size = self._shape.q_size
        chunks = list(self._chunks(ids, query_positions))
        found = []
        for i in range(self._shape.num_layers):
            projected = np.concatenate([rows[i] for rows, _ in chunks])
            residual = np.concatenate([squares[i] for _, squares in chunks])
            queries = projected[query_positions, :size]
            rest = projected[:, size:]
            found.append(self._layer(i, query_positions, queries, rest, residual, start))
        return found

    def _chunks(
        self, ids: Int32Array, query_positions: Int32Array
    ) -> Iterator[tuple[list[Float32Array], list[Float32Array]]]:
        """Of every chunk, for each layer: the output of its ``qkv`` linear, all rows, and the
        squared length of the residual stream, rows of queries."""
        for start in range(0, len(ids), self._limits.rows):
            part = ids[start : start + self._limits.rows]
            sampled = query_positions - np.int32(start)
            sampled = sampled[(sampled >= 0) & (sampled < len(part))]
            self._decoder.run(BatchInput.of_one(part, start, self._table, sampled))
            yield (
                [tensor.read(len(part)).copy() for tensor in self._decoder.projected],
                [
                    np.square(tensor.read(len(sampled))).sum(axis=1)
                    for tensor in self._decoder.residuals
                ],
            )

    def _layer(
        self,
        i: int,
        query_positions: Int32Array,
        queries: Float32Array,
        rest: Float32Array,
        residual: Float32Array,
        start: int | None,
    ) -> LayerRows:
        shape, layer = self._shape, self._weights.layers[i]
        bias = layer.qkv_bias if layer.qkv_bias is not None else np.zeros(1, dtype=np.float32)
        parts = [shape.q_size, shape.q_size + shape.kv_size] if layer.qkv_bias is not None else []
        q_bias, k_bias, v_bias = np.split(bias, parts) if parts else (bias, bias, bias)
        rope = layer_rope(shape, i)
        k, v = rest[:, : shape.kv_size] + k_bias, rest[:, shape.kv_size :] + v_bias
        positions = np.arange(len(rest), dtype=np.int32)
        return LayerRows(
            query_positions,
            self._turned(queries + q_bias, layer.q_norm, rope, query_positions, start),
            self._turned(k, layer.k_norm, rope, positions, start),
            v.reshape(len(v), -1, shape.head_dim),
            residual,
        )

    def _turned(
        self,
        x: Float32Array,
        norm: Vector | None,
        rope: RopeSpec,
        positions: Int32Array,
        start: int | None,
    ) -> Float32Array:
        heads = x.reshape(len(x), -1, self._shape.head_dim)
        if norm is not None:
            square = np.mean(np.square(heads), axis=2, keepdims=True)
            heads = heads / np.sqrt(square + np.float32(self._shape.rms_norm_eps)) * norm
        return heads if start is None else turn(heads, rope, positions + np.int32(start))

    def close(self) -> None:
        """Give the memory back."""
        del self._decoder
        self._pool.close()


def turn(heads: Float32Array, rope: RopeSpec, positions: Int32Array) -> Float32Array:
    """Heads ``[T, heads, head_dim]`` after RoPE; channels past ``rope.dims`` pass."""
    cosines, sines = (
        table[:, None, :]
        for table in (table[positions] for table in rope_tables(rope, int(positions.max()) + 1))
    )
    first, second = rope_pairs(rope)
    out = heads.copy()
    x, y = heads[:, :, first], heads[:, :, second]
    out[:, :, first], out[:, :, second] = x * cosines - y * sines, y * cosines + x * sines
    return out


def layer_rope(shape: ModelShape, layer: int) -> RopeSpec:
    """The rotary embedding of a layer: layers with a window may have one of their own."""
    local = shape.local_rope if shape.layers[layer].window is not None else None
    return local or shape.rope


def rope_pairs(rope: RopeSpec) -> tuple[slice, slice]:
    """The first and the second channels of all pairs."""
    if rope.pairs == "interleaved":
        return slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    return slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)
