"""The forward pass: one decoder for every Llama-like architecture."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.kv.layout import KVLayout
from kvreuse.model.rope import rope_tables
from kvreuse.model.weights import LayerWeights, ModelWeights, Vector
from kvreuse.ops.native import (
    Attention,
    Batch,
    Input,
    Kernels,
    KVView,
    Program,
    Projection,
    Rotary,
    Tensor,
    Workspace,
)
from kvreuse.shape import ModelShape, RopeSpec

UNITS_PER_THREAD = 8
"""Pieces of attention's work that every thread should find: threads take them in turn."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: rows, rows that sample, sequences, and positions of a sequence."""

    rows: int
    samples: int
    sequences: int
    positions: int


class Decoder:
    """Runs rows of tokens through the layers; keys and values go to the pages of a pool.

    All buffers are taken at the start, for the largest step. For T rows, of which S sample::

        x       T x hidden           the residual stream
        qkv     T x (q + 2 kv)       -> pages, and queries
        mixed   T x q                attention's output
        gate_up T x 2 ffn            gate, then up
        branch  T x hidden           what is normalised before it is added, where the model has that
        last    S x hidden           the rows that sample
        logits  S x vocab
    """

    def __init__(
        self,
        spec: ModelShape,
        weights: ModelWeights,
        kernels: Kernels,
        layout: KVLayout,
        pool: npt.NDArray[np.uint8],
        limits: StepLimits,
        *,
        grouped: bool = True,
    ) -> None:
        """``pool`` is uint8[num_pages, page_bytes], see ``PagePool.data``.

        ``grouped``: attention reads pages that sequences share once for all of them, not once for
        each; the results are the same.
        """
        self.spec = spec
        self._threads = kernels.threads
        self._batch = Batch(
            rows=limits.rows,
            samples=limits.samples,
            sequences=limits.sequences,
            table_pages=-(-limits.positions // layout.page_size),
            page_size=layout.page_size,
            num_pages=len(pool),
            vocabulary=spec.vocab_size,
            positions=limits.positions,
            group_size=spec.group_size,
            grouped=grouped,
        )
        self._workspace = Workspace(
            threads=kernels.threads,
            max_rows=max(limits.rows, limits.samples),
            max_inputs=max(spec.hidden_size, spec.q_size, spec.intermediate_size),
            query_width=spec.q_size,
            group_size=spec.group_size,
            heads=spec.num_heads,
            head_dim=spec.head_dim,
            max_partials=self._batch.max_partials,
        )
        self._codec = layout.codec
        self._kv = _kv_view(spec, layout, pool)
        self._rotary = _rotary(spec.rope, limits.positions)
        self._local_rotary = (
            _rotary(spec.local_rope, limits.positions) if spec.local_rope else self._rotary
        )
        self._x = Tensor(limits.rows, spec.hidden_size)
        self._qkv = Tensor(limits.rows, spec.q_size + 2 * spec.kv_size)
        self._mixed = Tensor(limits.rows, spec.q_size)
        self._gate_up = Tensor(limits.rows, 2 * spec.intermediate_size)
        self._branch = Tensor(limits.rows if spec.post_norms else 1, spec.hidden_size)
        self._last = Tensor(limits.samples, spec.hidden_size)
        self._logits = Tensor(limits.samples, weights.logits.outputs)
        self._logit_rows = self._logits.numpy()[:, : spec.vocab_size]
        self._program = Program(kernels, self._workspace, self._batch)
        self._record(weights)

    def _record(self, weights: ModelWeights) -> None:
        """Write the forward pass down; a step runs it over the rows that the batch then holds.

        Two linears of a layer add to the residual stream ``x``, the others write.
        """
        run, x = self._program, self._x
        run.embed(weights.embedding, self.spec.embedding_scale, x)
        for i, layer in enumerate(weights.layers):
            self._record_layer(i, layer)
        run.gather(x, self._last)
        norm = self._norm(weights.output_norm)
        run.linear("logits", weights.logits, self._last, norm, self._logits, sampled=True)

    def _record_layer(self, i: int, layer: LayerWeights) -> None:
        run, x, qkv, mixed, gate_up = (
            self._program,
            self._x,
            self._qkv,
            self._mixed,
            self._gate_up,
        )
        gated = Input.silu_mul() if self.spec.activation == "silu" else Input.gelu_mul()
        run.linear("qkv", layer.qkv, x, self._norm(layer.attention_norm), qkv)
        run.attend(self._attention(i, layer), qkv, mixed)
        self._add("output", layer.output, mixed, Input.plain(), layer.post_attention_norm)
        run.linear("gate, up", layer.gate_up, x, self._norm(layer.ffn_norm), gate_up)
        self._add("down", layer.down, gate_up, gated, layer.post_ffn_norm)

    def _attention(self, i: int, layer: LayerWeights) -> Attention:
        spec = self.spec
        window = spec.layers[i].window
        scale = spec.attention_scale or 1 / math.sqrt(spec.head_dim)
        transform = self._codec.transform(i)
        options: dict[str, Any] = {}
        if transform is not None:
            options = {
                "key_constant": _flat(transform.constant),
                "key_scale": _flat(transform.scale),
                "hadamard_keys": transform.hadamard_keys,
                "hadamard_values": transform.hadamard_values,
            }
        return Attention(
            self._kv,
            self._rotary if window is None else self._local_rotary,
            i,
            math.log2(math.e) * scale,
            window or 0,
            layer.qkv_bias,
            layer.q_norm,
            layer.k_norm,
            spec.rms_norm_eps,
            **options,
        )

    def _add(
        self, name: str, weights: Projection, y: Tensor, given: Input, norm: Vector | None
    ) -> None:
        """Add a linear's output to the residual stream, normalised first where there is a norm."""
        if norm is None:
            self._program.linear(name, weights, y, given, self._x, accumulate=True)
        else:
            self._program.linear(name, weights, y, given, self._branch)
            self._program.add_norm(self._branch, self._norm(norm), self._x)

    def _norm(self, weight: Vector) -> Input:
        return Input.rms_norm(weight, self.spec.rms_norm_eps)

    def forward(
        self,
        ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        row_seq: npt.NDArray[np.int32],
        tables: npt.NDArray[np.int32],
        kv_len: npt.NDArray[np.int32],
        sample_rows: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.float32]:
        """The logits of ``sample_rows``, float32[S, vocab], valid until the next call.

        The arguments are the fields of ``BatchInput``. ValueError where they are out of bounds.
        """
        # Attention has kv heads as many units as items: enough that no thread idles for long.
        units = UNITS_PER_THREAD * self._threads if self._threads > 1 else 1
        units_wanted = -(-units // self.spec.num_kv_heads)
        self._batch.load(ids, positions, row_seq, tables, kv_len, sample_rows, units_wanted)
        self._program.run()
        return self._logit_rows[: len(sample_rows)]

    def seconds(self) -> dict[str, float]:
        """Seconds spent in the kernels so far, by operation."""
        return dict(self._program.seconds())

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far.

        A page counts once for each of attention's work items that reads it, however many rows that
        item has; what a window hides does not count.
        """
        return self._program.page_bytes_read


def _kv_view(spec: ModelShape, layout: KVLayout, pool: npt.NDArray[np.uint8]) -> KVView:
    """Where and how keys and values lie in the pages of ``pool``."""
    codecs = () if layout.codec.is_plain else (layout.codec_ids(), layout.clips())
    return KVView(
        pool,
        layout.page_size,
        spec.num_layers,
        spec.num_kv_heads,
        spec.group_size,
        spec.head_dim,
        *codecs,
    )


def _flat(rows: Vector | None) -> Vector | None:
    """Rows one after the other, as the kernels take them."""
    return None if rows is None else np.ascontiguousarray(rows, dtype=np.float32).reshape(-1)


def _rotary(rope: RopeSpec, positions: int) -> Rotary:
    return Rotary(*rope_tables(rope, positions), rope.pairs == "interleaved")
