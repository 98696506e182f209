"""The forward pass: one decoder for every Llama-like architecture."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from kvreuse.kv.layout import KVLayout
from kvreuse.ops.native import Batch, Input, Kernels, KVView, Rotary, Tensor, Workspace

from .rope import rope_tables
from .spec import ModelSpec
from .weights import LayerWeights, ModelWeights

PART_TOKENS = 512
"""Tokens whose attention results are kept apart before they are merged (native/kernels.h)."""


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
        last    S x hidden           the rows that sample
        logits  S x vocab
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        kernels: Kernels,
        layout: KVLayout,
        pool: npt.NDArray[np.uint8],
        limits: StepLimits,
    ) -> None:
        """``pool`` is uint8[num_pages, page_bytes], see ``PagePool.data``."""
        self.spec = spec
        self._weights = weights
        self._kernels = kernels
        self._query_scale = math.log2(math.e) / math.sqrt(spec.head_dim)
        self._batch = Batch(
            rows=limits.rows,
            sequences=limits.sequences,
            table_pages=-(-limits.positions // layout.page_size),
            page_size=layout.page_size,
            num_pages=len(pool),
            vocabulary=spec.vocab_size,
            positions=limits.positions,
        )
        self._workspace = Workspace(
            threads=kernels.threads,
            max_rows=max(limits.rows, limits.samples),
            max_inputs=max(spec.hidden_size, spec.q_size, spec.intermediate_size),
            query_width=spec.q_size,
            group_size=spec.group_size,
            heads=spec.num_heads,
            head_dim=spec.head_dim,
            max_partials=limits.sequences * -(-limits.positions // PART_TOKENS),
        )
        self._kv = KVView(
            pool,
            layout.page_size,
            spec.num_layers,
            spec.num_kv_heads,
            spec.group_size,
            spec.head_dim,
        )
        self._rotary = Rotary(
            *rope_tables(spec.rope, limits.positions), spec.rope.pairs == "interleaved"
        )
        self._x = Tensor(limits.rows, spec.hidden_size)
        self._qkv = Tensor(limits.rows, spec.q_size + 2 * spec.kv_size)
        self._mixed = Tensor(limits.rows, spec.q_size)
        self._gate_up = Tensor(limits.rows, 2 * spec.intermediate_size)
        self._last = Tensor(limits.samples, spec.hidden_size)
        self._logits = Tensor(limits.samples, weights.logits.outputs)
        self._rows = self._x.numpy()
        self._last_rows = self._last.numpy()
        self._logit_rows = self._logits.numpy()[:, : spec.vocab_size]
        self._inputs = [self._layer_inputs(layer) for layer in weights.layers]
        self._final = Input.rms_norm(weights.output_norm, spec.rms_norm_eps)
        self._plain = Input.plain()
        self._gated = Input.silu_mul() if spec.activation == "silu" else Input.gelu_mul()

    def _layer_inputs(self, layer: LayerWeights) -> tuple[Input, Input]:
        eps = self.spec.rms_norm_eps
        return Input.rms_norm(layer.attention_norm, eps), Input.rms_norm(layer.ffn_norm, eps)

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
        k, space, batch = self._kernels, self._workspace, self._batch
        x, qkv, mixed, gate_up = self._x, self._qkv, self._mixed, self._gate_up
        batch.load(ids, positions, row_seq, tables, kv_len, 2 * k.threads)
        rows = len(ids)
        k.embed(self._weights.embedding, batch, self.spec.embedding_scale, x)
        layers = zip(self._weights.layers, self._inputs, strict=True)
        for i, (layer, (attention_input, ffn_input)) in enumerate(layers):
            k.linear(space, layer.qkv, x, rows, attention_input, qkv, False)
            k.attend(space, batch, self._kv, self._rotary, i, self._query_scale, qkv, mixed)
            k.linear(space, layer.output, mixed, rows, self._plain, x, True)
            k.linear(space, layer.gate_up, x, rows, ffn_input, gate_up, False)
            k.linear(space, layer.down, gate_up, rows, self._gated, x, True)
        return self._sampled(sample_rows)

    def _sampled(self, sample_rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        count = len(sample_rows)
        if count:
            np.take(self._rows, sample_rows, axis=0, out=self._last_rows[:count])
            self._kernels.linear(
                self._workspace,
                self._weights.logits,
                self._last,
                count,
                self._final,
                self._logits,
                False,
            )
        return self._logit_rows[:count]
