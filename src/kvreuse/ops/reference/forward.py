"""The whole forward pass in the kernels' arithmetic: the twin of the runner, for small models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.model.spec import ModelSpec
from kvreuse.ops.reference.attention import attend, scale_queries
from kvreuse.ops.reference.floats import Float32, add
from kvreuse.ops.reference.linear import embed, linear
from kvreuse.ops.reference.matrices import DenseMatrix, Matrix
from kvreuse.ops.reference.pages import Geometry, Pages, copy_rows, write_rows
from kvreuse.ops.reference.rotary import rope, rope_tables
from kvreuse.ops.reference.rows import gelu_mul, rms_norm, silu_mul

Ints = npt.NDArray[np.int32]
Weights = Mapping[str, Matrix]


class Batch(Protocol):
    """The arrays of a step, as the runner gets them."""

    @property
    def ids(self) -> Ints:
        """Token ids ``[T]``."""

    @property
    def positions(self) -> Ints:
        """Their positions ``[T]``."""

    @property
    def row_seq(self) -> Ints:
        """Their sequences ``[T]``: rows of ``tables``."""

    @property
    def tables(self) -> Ints:
        """Page ids ``[B, P]``."""

    @property
    def kv_len(self) -> Ints:
        """Tokens in the cache after this step ``[B]``."""

    @property
    def sample_rows(self) -> Ints:
        """Rows whose logits are wanted ``[S]``."""

    @property
    def copies(self) -> Sequence[tuple[int, int, int]]:
        """``(source page, target page, rows)``, done before anything else."""


def forward(
    spec: ModelSpec, weights: Weights, batch: Batch, pages: Pages, geometry: Geometry
) -> Float32:
    """Logits float32 ``[S, vocab]`` of one step; keys and values are written into ``pages``.

    ``weights`` are matrices under their GGUF names (a norm is a matrix of one row), ``pages`` uint8
    ``[num_pages, page_bytes]``. Raises ValueError for what only
    other decoders have: biases, QK-norm, windows.
    """
    if spec.qkv_bias or spec.qk_norm or any(spec.windows):
        raise ValueError(f"no twin for a {spec.architecture} with biases, QK-norm or windows")
    for source, target, rows in batch.copies:
        copy_rows(pages, geometry, source, target, rows)
    step = _Step(spec, weights, batch, pages, geometry)
    x = embed(weights["token_embd.weight"], batch.ids, spec.embedding_scale)
    for layer in range(spec.num_layers):
        x = add(x, step.attention(layer, x))
        x = add(x, step.feed_forward(layer, x))
    x = step.norm(x[batch.sample_rows], "output_norm")
    return linear(x, weights["token_embd.weight" if spec.tied_embeddings else "output.weight"])


class _Step:
    """One step through the layers: what the operations of a layer share."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, batch: Batch, pages: Pages, geometry: Geometry
    ) -> None:
        self.spec, self.weights, self.batch = spec, weights, batch
        self.pages, self.geometry = pages, geometry
        self.rope_tables = rope_tables(spec.rope, int(batch.positions.max()) + 1)
        page = batch.tables[batch.row_seq, batch.positions // geometry.page_size]
        self.where = page, batch.positions % np.int32(geometry.page_size)

    def norm(self, x: Float32, name: str) -> Float32:
        weight = self.weights[f"{name}.weight"]
        if not isinstance(weight, DenseMatrix):
            raise ValueError(f"{name}.weight is quantised")
        return rms_norm(x, weight.weights[0], self.spec.rms_norm_eps)

    def heads(self, x: Float32, name: str) -> Float32:
        """A linear whose outputs are heads: ``[T, heads, head_dim]``."""
        return linear(x, self.weights[f"{name}.weight"]).reshape(len(x), -1, self.spec.head_dim)

    def rotate(self, heads: Float32) -> Float32:
        return rope(heads, self.batch.positions, self.rope_tables, self.spec.rope)

    def attention(self, layer: int, x: Float32) -> Float32:
        block, batch = f"blk.{layer}", self.batch
        normed = self.norm(x, f"{block}.attn_norm")
        q, k, v = (self.heads(normed, f"{block}.attn_{part}") for part in "qkv")
        write_rows(self.pages, self.geometry, layer, self.where, k=self.rotate(k), v=v)
        seen = attend(
            scale_queries(self.rotate(q), self.spec.head_dim),
            self.pages,
            self.geometry,
            layer=layer,
            tables=batch.tables,
            kv_len=batch.kv_len,
            positions=batch.positions,
            row_seq=batch.row_seq,
        )
        return linear(seen, self.weights[f"{block}.attn_output.weight"])

    def feed_forward(self, layer: int, x: Float32) -> Float32:
        block = f"blk.{layer}"
        normed = self.norm(x, f"{block}.ffn_norm")
        gate = linear(normed, self.weights[f"{block}.ffn_gate.weight"])
        up = linear(normed, self.weights[f"{block}.ffn_up.weight"])
        hidden = silu_mul(gate, up) if self.spec.activation == "silu" else gelu_mul(gate, up)
        return linear(hidden, self.weights[f"{block}.ffn_down.weight"])
