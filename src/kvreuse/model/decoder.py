"""The forward pass: one decoder for every Llama-like architecture."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvreuse.config import EngineConfig
from kvreuse.errors import RequestError
from kvreuse.kv.pool import PagePool
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.rope import rope_tables
from kvreuse.model.weights import LayerWeights, ModelWeights, Progress, Vector, load_weights
from kvreuse.ops.backend import (
    Attention,
    Backend,
    Matrix,
    Norm,
    Prologue,
    Rotary,
    StepLimits,
    Tensor,
)
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.shape import ModelShape, RopeSpec

FLOAT = 4


class Decoder:
    """Runs rows of tokens through the layers; keys and values go to the pages of a pool.

    The pass is recorded at the start, for the largest step; :func:`tensor_sizes` has its tensors.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: ModelWeights,
        backend: Backend,
        pool: PagePool,
        limits: StepLimits,
        *,
        grouped: bool = True,
    ) -> None:
        """``weights`` and ``pool`` are of ``backend``; ``grouped``: see ``Backend.program``."""
        self.shape = shape
        self.weights = weights
        self._limits = limits
        self._program = backend.program(shape, pool, limits, grouped=grouped)
        self._rotary = {
            rope: Rotary(rope, *rope_tables(rope, limits.positions)) for rope in _ropes(shape)
        }
        self._tensors = {
            name: self._program.tensor(*size) for name, size in tensor_sizes(shape, limits).items()
        }
        self._record()

    def _record(self) -> None:
        """Record the pass. Two linears of a layer add to the residual stream ``x``."""
        run, x, last = self._program, self._tensors["x"], self._tensors["last"]
        run.embed(self.weights.embedding, self.shape.embedding_scale, x)
        for i, layer in enumerate(self.weights.layers):
            self._record_layer(i, layer)
        run.gather(x, last)
        run.linear(
            "logits",
            self.weights.logits,
            last,
            self._tensors["logits"],
            prologue=self._norm(self.weights.output_norm),
            sampled=True,
        )

    def _record_layer(self, i: int, layer: LayerWeights) -> None:
        run, tensors = self._program, self._tensors
        x, qkv, mixed, gate_up = (tensors[name] for name in ("x", "qkv", "mixed", "gate_up"))
        run.linear("qkv", layer.qkv, x, qkv, prologue=self._norm(layer.attention_norm))
        run.attend(self._attention(i, layer), qkv, mixed)
        self._add("output", layer.output, mixed, None, layer.post_attention_norm)
        run.linear("gate, up", layer.gate_up, x, gate_up, prologue=self._norm(layer.ffn_norm))
        self._add("down", layer.down, gate_up, self.shape.activation, layer.post_ffn_norm)

    def _attention(self, i: int, layer: LayerWeights) -> Attention:
        shape = self.shape
        window = shape.layers[i].window
        rope = shape.rope if window is None else shape.local_rope or shape.rope
        return Attention(
            layer=i,
            scale=shape.attention_scale or 1 / math.sqrt(shape.head_dim),
            rotary=self._rotary[rope],
            window=window,
            bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=shape.rms_norm_eps,
        )

    def _add(
        self,
        name: str,
        weights: tuple[Matrix, ...],
        y: Tensor,
        prologue: Prologue,
        norm: Vector | None,
    ) -> None:
        """Add a linear's output to the residual stream, normalised first where there is a norm."""
        x = self._tensors["x"]
        if norm is None:
            self._program.linear(name, weights, y, x, prologue=prologue, accumulate=True)
        else:
            branch = self._tensors["branch"]
            self._program.linear(name, weights, y, branch, prologue=prologue)
            self._program.add_norm(branch, self._norm(norm), x)

    def _norm(self, weight: Vector) -> Norm:
        return Norm(weight, self.shape.rms_norm_eps)

    @property
    def max_num_batched_tokens(self) -> int:
        """Rows that one batch may have."""
        return self._limits.rows

    @property
    def max_num_seqs(self) -> int:
        """Sequences that one batch may have."""
        return self._limits.sequences

    def run(self, batch: BatchInput) -> Float32Array:
        """float32[S, vocab]: the logits of ``sample_rows``, valid until the next run.

        RequestError if more rows sample than the decoder was made for, ValueError where the batch
        names a token, page or position that does not exist.
        """
        samples = len(batch.sample_rows)
        if samples > self._limits.samples:
            raise RequestError(f"{samples} rows ask for logits, at most {self._limits.samples} may")
        self._program.run(batch)
        return self._tensors["logits"].read(samples)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers: those of the program and the tables of the rotary embedding."""
        tables = self._rotary.values()
        return self._program.nbytes + sum(t.cosines.nbytes + t.sines.nbytes for t in tables)

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far."""
        return self._program.page_bytes_read

    def seconds(self) -> dict[str, float]:
        """Seconds spent in the operations so far, by name; the rest of a step is Python's."""
        return self._program.seconds()


def load_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    pool: PagePool,
    config: EngineConfig,
    progress: Progress | None = None,
) -> Decoder:
    """Pack the weights of ``checkpoint``, which may be closed afterwards, and record the pass.

    ``progress`` as for ``load_weights``; ``pool`` is of ``backend``. ConfigError where the backend
    cannot be opened, ModelFileError for weights that cannot be served.
    """
    shape = checkpoint.shape
    weights = load_weights(checkpoint, backend, progress)
    return Decoder(shape, weights, backend, pool, step_limits(config, shape, pool.num_tokens))


def step_limits(config: EngineConfig, shape: ModelShape, num_tokens: int) -> StepLimits:
    """The largest step of an engine whose pages hold ``num_tokens`` tokens."""
    return StepLimits(
        rows=max(config.max_num_batched_tokens, config.max_num_seqs),
        samples=config.max_num_seqs,
        sequences=config.max_num_seqs,
        positions=min(config.model_len(shape.context_length), num_tokens),
    )


def tensor_sizes(shape: ModelShape, limits: StepLimits) -> dict[str, tuple[int, int]]:
    """Rows and columns of every tensor of the forward pass.

    ::

        x        the residual stream
        qkv      queries, keys, values
        mixed    attention's output
        gate_up  gate, then up
        branch   what is normalised before it is added, where the model has that
        last     x of the rows that sample
        logits   of the rows that sample
    """
    rows, samples = limits.rows, limits.samples
    sizes = {
        "x": (rows, shape.hidden_size),
        "qkv": (rows, shape.q_size + 2 * shape.kv_size),
        "mixed": (rows, shape.q_size),
        "gate_up": (rows, 2 * shape.intermediate_size),
        "last": (samples, shape.hidden_size),
        "logits": (samples, shape.vocab_size),
    }
    return sizes | ({"branch": (rows, shape.hidden_size)} if shape.post_norms else {})


def decoder_bytes(shape: ModelShape, page_size: int, limits: StepLimits, backend: Backend) -> int:
    """``nbytes`` of a decoder, before there is one."""
    tensors = sum(backend.tensor_bytes(*size) for size in tensor_sizes(shape, limits).values())
    tables = sum(FLOAT * limits.positions * rope.dims for rope in _ropes(shape))
    return tensors + tables + backend.program_bytes(shape, page_size, limits)


def _ropes(shape: ModelShape) -> Iterator[RopeSpec]:
    """The rotary embeddings of a model: that of all layers, and that of layers with a window."""
    yield shape.rope
    if shape.local_rope is not None and shape.local_rope != shape.rope:
        yield shape.local_rope
