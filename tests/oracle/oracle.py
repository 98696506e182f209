"""A forward pass in float32 over dequantised weights, read with the ``gguf`` package.

Written for clarity and truth: matrix products in float32, everything that a rounding could hurt
(norms, rotations, gates, softmax) in float64, no cache, the whole sequence at once. One matrix at a
time is dequantised, so a model takes little more memory than its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from .dequantize import dequantize
from .shape import read_shape

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

VOCAB_ROWS_AT_ONCE = 8192


class Oracle:
    """The model of one GGUF file: ``llama``, ``qwen2``, ``qwen3`` or ``gemma3``."""

    def __init__(self, path: str | Path) -> None:
        reader = GGUFReader(str(path))
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shape = read_shape(reader)
        self.vocab_size = int(self.tensors["token_embd.weight"].shape[1])

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """Logits ``float32 [T, vocab]`` of the token after each of the ``T`` tokens given."""
        return next(self.chunks(token_ids, len(token_ids)))

    def chunks(self, token_ids: Sequence[int], rows: int) -> Iterator[Float32]:
        """The same, ``rows`` of them at a time: all of a large vocabulary are gigabytes."""
        x = self.hidden(token_ids)
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            out = np.empty((len(part), self.vocab_size), dtype=np.float32)
            for first in range(0, self.vocab_size, VOCAB_ROWS_AT_ONCE):
                some = slice(first, first + VOCAB_ROWS_AT_ONCE)
                np.matmul(part, self.weight(name, some).T, out=out[:, some])
            yield out

    def hidden(self, token_ids: Sequence[int]) -> Float32:
        """What the output matrix is given: ``float32 [T, hidden]``."""
        x = self._embed(token_ids)
        for layer in range(self.shape.num_layers):
            block = f"blk.{layer}."
            seen = self._attention(layer, self._norm(x, f"{block}attn_norm"))
            x = x + self._norm_if_any(seen, f"{block}post_attention_norm")
            made = self._feed_forward(block, self._norm(x, f"{block}ffn_norm"))
            x = x + self._norm_if_any(made, f"{block}post_ffw_norm")
        return self._norm(x, "output_norm")

    def weight(self, name: str, rows: slice = slice(None)) -> Float32:
        """A tensor as ``float32``: ``[rows, cols]`` of a matrix, ``[1, cols]`` of a vector."""
        tensor = self.tensors[name]
        cols = int(tensor.shape[0])
        data = tensor.data if len(tensor.shape) > 1 else tensor.data[None]
        part = np.ascontiguousarray(data[rows])
        return dequantize(tensor.tensor_type.name, part.view(np.uint8), len(part), cols)

    def _embed(self, token_ids: Sequence[int]) -> Float32:
        """Rows ``[T, hidden]`` of the embedding; each distinct token is dequantised once."""
        distinct, where = np.unique(np.asarray(token_ids), return_inverse=True)
        table = [self.weight("token_embd.weight", slice(int(i), int(i) + 1)) for i in distinct]
        rows: Float32 = np.concatenate(table)[where] * np.float32(self.shape.embedding_scale)
        return rows

    def _linear(self, x: Float32, name: str) -> Float32:
        out = np.asarray(x @ self.weight(f"{name}.weight").T, dtype=np.float32)
        return out + self.weight(f"{name}.bias") if f"{name}.bias" in self.tensors else out

    def _norm(self, x: Float32, name: str) -> Float32:
        """RMS norm over the last axis (Zhang and Sennrich, 2019)."""
        wide = x.astype(np.float64)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide / np.sqrt(mean + self.shape.eps) * self.weight(f"{name}.weight")[0]
        return np.asarray(normed, dtype=np.float32)

    def _norm_if_any(self, x: Float32, name: str) -> Float32:
        return self._norm(x, name) if f"{name}.weight" in self.tensors else x

    def _feed_forward(self, block: str, x: Float32) -> Float32:
        """SwiGLU or GeGLU (Shazeer, 2020)."""
        gate = self._linear(x, f"{block}ffn_gate").astype(np.float64)
        if self.shape.gelu:
            inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        else:
            inner = gate * 0.5  # 1 + tanh: the logistic function without an overflow
        hidden = gate * 0.5 * (1.0 + np.tanh(inner)) * self._linear(x, f"{block}ffn_up")
        return self._linear(hidden.astype(np.float32), f"{block}ffn_down")

    def _attention(self, layer: int, x: Float32) -> Float32:
        """Causal attention of the whole sequence, one head at a time."""
        shape, block, window = self.shape, f"blk.{layer}.", self.shape.windows[layer]
        rope = shape.rope if window is None else shape.local_rope
        q, k = (
            rope.turn(self._norm_if_any(self._heads(x, f"{block}{name}"), f"{block}{name}_norm"))
            for name in ("attn_q", "attn_k")
        )
        v = self._heads(x, f"{block}attn_v")
        before = np.arange(len(x))[:, None] - np.arange(len(x))
        hidden = (before < 0) | (before >= (window or len(x)))
        group = shape.num_heads // shape.num_kv_heads
        heads = [
            _softmax((q[:, h] @ k[:, h // group].T) * shape.attention_scale, hidden)
            @ v[:, h // group]
            for h in range(shape.num_heads)
        ]
        return self._linear(np.concatenate(heads, axis=1), f"{block}attn_output")

    def _heads(self, x: Float32, name: str) -> Float32:
        return self._linear(x, name).reshape(len(x), -1, self.shape.head_dim)


def _softmax(scores: Float32, masked: npt.NDArray[np.bool_]) -> Float32:
    """Softmax of each row in float64, with no weight where ``masked``."""
    wide = np.where(masked, -np.inf, scores.astype(np.float64))
    wide -= wide.max(axis=-1, keepdims=True)
    np.exp(wide, out=wide)
    wide /= wide.sum(axis=-1, keepdims=True)
    return wide.astype(np.float32)
