"""A Llama forward pass in float32 over dequantised weights, read with the ``gguf`` package.

Written for clarity and truth: matrix products in float32, everything that a rounding could hurt
(norms, rotations, softmax) in float64, no cache, the whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from .dequantize import dequantize

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

VOCAB_ROWS_AT_ONCE = 8192


class Oracle:
    """The model of one GGUF file, architecture ``llama``; weights are dequantised when used."""

    def __init__(self, path: str | Path) -> None:
        reader = GGUFReader(str(path))
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.num_layers = int(reader.fields["llama.block_count"].contents())
        self.num_heads = int(reader.fields["llama.attention.head_count"].contents())
        self.num_kv_heads = int(reader.fields["llama.attention.head_count_kv"].contents())
        self.eps = float(reader.fields["llama.attention.layer_norm_rms_epsilon"].contents())
        base = reader.fields.get("llama.rope.freq_base")
        self.rope_base = 10000.0 if base is None else float(base.contents())
        self.head_dim = self._rows_of("blk.0.attn_q.weight") // self.num_heads
        dims = reader.fields.get("llama.rope.dimension_count")
        self.rope_dims = self.head_dim if dims is None else int(dims.contents())
        self.vocab_size = self._rows_of("token_embd.weight")

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """Logits ``float32 [T, vocab]`` of the token after each of the ``T`` tokens given."""
        x = self._embed(token_ids)
        for layer in range(self.num_layers):
            x = x + self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"))
            x = x + self._feed_forward(layer, self._norm(x, f"blk.{layer}.ffn_norm"))
        x = self._norm(x, "output_norm")
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        out = np.empty((len(token_ids), self.vocab_size), dtype=np.float32)
        for start in range(0, self.vocab_size, VOCAB_ROWS_AT_ONCE):
            rows = slice(start, start + VOCAB_ROWS_AT_ONCE)
            out[:, rows] = x @ self.weight(name, rows).T
        return out

    def weight(self, name: str, rows: slice = slice(None)) -> Float32:
        """A tensor as ``float32``: ``[rows, cols]`` of a matrix, ``[1, cols]`` of a vector."""
        tensor = self.tensors[name]
        cols = int(tensor.shape[0])
        data = tensor.data if len(tensor.shape) > 1 else tensor.data[None]
        part = np.ascontiguousarray(data[rows])
        return dequantize(tensor.tensor_type.name, part.view(np.uint8), len(part), cols)

    def _rows_of(self, name: str) -> int:
        return int(self.tensors[name].shape[1])

    def _embed(self, token_ids: Sequence[int]) -> Float32:
        """Rows ``[T, hidden]`` of the embedding; each distinct token is dequantised once."""
        distinct, where = np.unique(np.asarray(token_ids), return_inverse=True)
        table = [self.weight("token_embd.weight", slice(int(i), int(i) + 1)) for i in distinct]
        rows: Float32 = np.concatenate(table)[where]
        return rows

    def _linear(self, x: Float32, name: str) -> Float32:
        weights = self.weight(f"{name}.weight")
        return np.asarray(x @ weights.T, dtype=np.float32)

    def _norm(self, x: Float32, name: str) -> Float32:
        """RMS norm (Zhang and Sennrich, 2019)."""
        wide = x.astype(np.float64)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide / np.sqrt(mean + self.eps) * self.weight(f"{name}.weight")
        return np.asarray(normed, dtype=np.float32)

    def _feed_forward(self, layer: int, x: Float32) -> Float32:
        """SwiGLU (Shazeer, 2020)."""
        gate = self._linear(x, f"blk.{layer}.ffn_gate").astype(np.float64)
        up = self._linear(x, f"blk.{layer}.ffn_up")
        # 1 + tanh in place of 1 / (1 + exp): the logistic function without an overflow
        hidden = gate * 0.5 * (1.0 + np.tanh(gate * 0.5)) * up
        return self._linear(hidden.astype(np.float32), f"blk.{layer}.ffn_down")

    def _attention(self, layer: int, x: Float32) -> Float32:
        """Causal attention of the whole sequence, one head at a time."""
        q = self._rotate(self._heads(self._linear(x, f"blk.{layer}.attn_q")))
        k = self._rotate(self._heads(self._linear(x, f"blk.{layer}.attn_k")))
        v = self._heads(self._linear(x, f"blk.{layer}.attn_v"))
        future = np.triu(np.ones((len(x), len(x)), dtype=bool), k=1)
        group = self.num_heads // self.num_kv_heads
        heads = [
            _softmax((q[:, h] @ k[:, h // group].T) / np.sqrt(self.head_dim), future)
            @ v[:, h // group]
            for h in range(self.num_heads)
        ]
        return self._linear(np.concatenate(heads, axis=1), f"blk.{layer}.attn_output")

    def _heads(self, rows: Float32) -> Float32:
        return rows.reshape(len(rows), -1, self.head_dim)

    def _rotate(self, x: Float32) -> Float32:
        """Rotary embedding (Su et al., 2021) of ``[T, heads, head_dim]``.

        Channels 2i and 2i+1 are one complex number: GGUF stores the rows of ``llama`` so.
        """
        half = self.rope_dims // 2
        inverse = self.rope_base ** -(np.arange(half) * 2.0 / self.rope_dims)
        turn = np.exp(1j * np.arange(len(x))[:, None, None] * inverse)
        pairs = x[:, :, : self.rope_dims].astype(np.float64).reshape(*x.shape[:2], half, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        out = x.copy()
        out[:, :, 0 : self.rope_dims : 2] = turned.real
        out[:, :, 1 : self.rope_dims : 2] = turned.imag
        return out


def _softmax(scores: Float32, masked: npt.NDArray[np.bool_]) -> Float32:
    """Softmax of each row in float64, with no weight where ``masked``."""
    wide = np.where(masked, -np.inf, scores.astype(np.float64))
    wide -= wide.max(axis=-1, keepdims=True)
    np.exp(wide, out=wide)
    wide /= wide.sum(axis=-1, keepdims=True)
    return wide.astype(np.float32)
