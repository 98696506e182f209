"""The whole forward pass in the kernels' arithmetic: the twin of the decoder, for small models.

It has a loop over the layers of its own, and takes its numbers from the shape by itself: a decoder
that recorded a wrong operation or number would differ from it in some bit.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvreuse.kv.codec.floats import Float32, add
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.batch import BatchInput
from kvreuse.ops.reference.attention import attend, scale_queries
from kvreuse.ops.reference.linear import embed, linear
from kvreuse.ops.reference.matrices import DenseMatrix, Matrix
from kvreuse.ops.reference.pages import Pages, copy_rows, write_rows
from kvreuse.ops.reference.rotary import rope, rope_tables
from kvreuse.ops.reference.rows import gelu_mul, rms_norm, silu_mul
from kvreuse.ops.reference.transform import (
    restore_values,
    transform_keys,
    transform_queries,
    transform_values,
)
from kvreuse.shape import ModelShape

Weights = Mapping[str, Matrix]


def forward(
    spec: ModelShape, weights: Weights, batch: BatchInput, pages: Pages, layout: KVLayout
) -> Float32:
    """Logits float32 ``[S, vocab]`` of one step; keys and values are written into ``pages``.

    ``weights`` are matrices under their GGUF names (a norm, a bias is a matrix of one row),
    ``pages`` uint8 ``[num_pages, page_bytes]``.
    """
    for source, target, rows in batch.copies:
        copy_rows(pages, layout, source, target, rows)
    step = _Step(spec, weights, batch, pages, layout)
    x = embed(weights["token_embd.weight"], batch.ids, spec.embedding_scale)
    for layer in range(spec.num_layers):
        x = add(x, step.attention(layer, x))
        x = add(x, step.feed_forward(layer, x))
    x = step.norm(x[batch.sample_rows], "output_norm")
    return linear(x, weights["token_embd.weight" if spec.tied_embeddings else "output.weight"])


class _Step:
    """One step through the layers: what the operations of a layer share."""

    def __init__(
        self, spec: ModelShape, weights: Weights, batch: BatchInput, pages: Pages, layout: KVLayout
    ) -> None:
        self.spec, self.weights, self.batch = spec, weights, batch
        self.pages, self.layout = pages, layout
        longest = int(batch.positions.max()) + 1
        self.rotations = {
            rope: rope_tables(rope, longest) for rope in (spec.rope, spec.local_rope) if rope
        }
        page = batch.tables[batch.row_seq, batch.positions // layout.page_size]
        self.where = page, batch.positions % layout.page_size

    def vector(self, name: str) -> Float32:
        """A norm or a bias."""
        weight = self.weights[name]
        if not isinstance(weight, DenseMatrix):
            raise ValueError(f"{name} is quantised")
        vector: Float32 = weight.weights[0]
        return vector

    def norm(self, x: Float32, name: str) -> Float32:
        return rms_norm(x, self.vector(f"{name}.weight"), self.spec.rms_norm_eps)

    def window(self, layer: int) -> int | None:
        return self.spec.layers[layer].window

    def heads(self, x: Float32, name: str) -> Float32:
        """A linear whose outputs are heads: ``[T, heads, head_dim]``."""
        out = linear(x, self.weights[f"{name}.weight"])
        if self.spec.qkv_bias:
            out = add(out, self.vector(f"{name}.bias"))
        return out.reshape(len(x), -1, self.spec.head_dim)

    def rotated(self, x: Float32, layer: int, name: str) -> Float32:
        """Heads of queries or keys: each normalised where the model does that, then turned."""
        heads = self.heads(x, name)
        if self.spec.qk_norm:
            rows = heads.reshape(-1, self.spec.head_dim)
            heads = self.norm(rows, f"{name}_norm").reshape(heads.shape)
        local = self.window(layer) is not None and self.spec.local_rope
        spec = local or self.spec.rope
        return rope(heads, self.batch.positions, self.rotations[spec], spec)

    def attention(self, layer: int, x: Float32) -> Float32:
        """What attention adds to the residual stream."""
        spec, block, batch = self.spec, f"blk.{layer}", self.batch
        normed = self.norm(x, f"{block}.attn_norm")
        q, k = (self.rotated(normed, layer, f"{block}.attn_{part}") for part in "qk")
        v = self.heads(normed, f"{block}.attn_v")
        transform = self.layout.codec.transform(layer)
        write_rows(
            self.pages,
            self.layout,
            layer,
            self.where,
            k=transform_keys(k, transform),
            v=transform_values(v, transform),
        )
        q = scale_queries(q, spec.head_dim, spec.attention_scale)
        seen = attend(
            transform_queries(q, transform),
            self.pages,
            self.layout,
            layer=layer,
            tables=batch.tables,
            kv_len=batch.kv_len,
            positions=batch.positions,
            row_seq=batch.row_seq,
            window=self.window(layer),
        )
        heads = restore_values(seen.reshape(len(x), -1, spec.head_dim), transform)
        out = linear(heads.reshape(seen.shape), self.weights[f"{block}.attn_output.weight"])
        return self.norm(out, f"{block}.post_attention_norm") if spec.post_norms else out

    def feed_forward(self, layer: int, x: Float32) -> Float32:
        """What the gated network adds to the residual stream."""
        spec, block = self.spec, f"blk.{layer}"
        normed = self.norm(x, f"{block}.ffn_norm")
        gate = linear(normed, self.weights[f"{block}.ffn_gate.weight"])
        up = linear(normed, self.weights[f"{block}.ffn_up.weight"])
        hidden = silu_mul(gate, up) if spec.activation == "silu" else gelu_mul(gate, up)
        out = linear(hidden, self.weights[f"{block}.ffn_down.weight"])
        return self.norm(out, f"{block}.post_ffw_norm") if spec.post_norms else out
