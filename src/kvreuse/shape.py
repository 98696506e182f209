"""The shape of a model: what its layers keep, and what else the forward pass has to know.

The only description of a model's layers: planner, page layout, codecs and decoder read this one.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

RopePairs = Literal["interleaved", "half"]
RopeScaling = Literal["none", "linear", "llama3", "yarn", "factors"]
Activation = Literal["silu", "gelu_tanh"]
Kind = Literal["key", "value"]

KINDS: tuple[Kind, Kind] = ("key", "value")
"""In the order of a page, and of the axis of a calibration that has both."""


class HeadRows(NamedTuple):
    """The rows of one kind that a layer keeps of a token: one of ``width`` channels a head."""

    kind: Kind
    heads: int
    width: int


@dataclasses.dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a sequence. All zero: nothing of its own.

    ``kv_heads`` heads keep a key of ``key_dim`` and a value of ``value_dim`` channels a token.
    ``value_dim`` is 0 where values are read from the rows of the keys (latent attention).
    ``window`` is the number of last tokens that are ever read again (None: all of them); a layer
    that attends in chunks reads at most a chunk.
    ``conv`` and ``state`` count the numbers kept for a sequence of any length: the last inputs of a
    convolution, and a recurrent state.
    """

    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    conv: int = 0
    state: int = 0

    @property
    def rows(self) -> tuple[HeadRows, ...]:
        """The rows of a token, keys first; without kinds that it keeps none of."""
        rows = (HeadRows(kind, self.kv_heads, self.width(kind)) for kind in KINDS)
        return tuple(one for one in rows if one.heads and one.width)

    def width(self, kind: Kind) -> int:
        """Channels of one head's key, or value."""
        return self.key_dim if kind == "key" else self.value_dim

    def kept(self, tokens: int) -> int:
        """Tokens that have to be kept of a sequence of ``tokens``, at most."""
        return tokens if self.window is None else min(tokens, self.window)


def attention(kv_heads: int, head_dim: int, window: int | None = None) -> LayerShape:
    """A layer of ordinary attention: multi-head, grouped or multi-query."""
    return LayerShape(kv_heads, head_dim, head_dim, window)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheShape:
    """A model as the memory of its sequences knows it. ``context_length`` None: no limit."""

    architecture: str
    layers: tuple[LayerShape, ...]
    context_length: int | None

    @property
    def num_layers(self) -> int:
        """Layers, whatever they keep."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer; None for one that sees all tokens."""
        return tuple(layer.window for layer in self.layers)


@dataclasses.dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer (Su et al., 2021).

    ``pairs`` says which two channels rotate together: ``interleaved`` (2i, 2i+1), as GGUF's
    ``llama`` stores them, or ``half`` (i, i + dims/2). ``dims`` channels of each head rotate, the
    rest pass.

    ``scaling`` stretches the positions that a model was trained on to a longer context; its numbers
    lie in ``scaling_params`` by name (``rope.py`` has the formulas):

    * ``none``: as trained
    * ``linear``: ``factor``
    * ``llama3``: ``factor``, ``low_freq_factor``, ``high_freq_factor``, ``original_context``
    * ``yarn``: ``factor``, ``original_context``, ``beta_fast``, ``beta_slow``, and ``attn_factor``,
      which multiplies cosines and sines
    * ``factors``: a divisor for the frequency of each pair, dims/2 of them in ``factors``
    """

    pairs: RopePairs
    base: float
    dims: int
    scaling: RopeScaling = "none"
    scaling_params: tuple[tuple[str, float], ...] = ()
    factors: tuple[float, ...] = ()

    def param(self, name: str) -> float:
        """A number of the scaling; ``KeyError`` where it has none of this name."""
        return dict(self.scaling_params)[name]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelShape(CacheShape):
    """The shape of a decoder-only Transformer that this engine serves. All sizes in elements.

    Layers with a window use ``local_rope`` where the model has one, all others ``rope``.

    ``qkv_bias``: queries, keys and values have a bias. ``qk_norm``: each head of queries and keys
    is normalised before it rotates. ``post_norms``: what attention and the feed-forward network
    give is normalised before it is added to the residual stream.
    ``attention_scale`` multiplies the products of queries and keys (``None``: 1/sqrt(head_dim)).
    """

    context_length: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeSpec
    activation: Activation = "silu"
    tied_embeddings: bool = False
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    qk_norm: bool = False
    local_rope: RopeSpec | None = None
    post_norms: bool = False
    attention_scale: float | None = None

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values in every layer. ValueError where layers differ."""
        return self._heads()[0]

    @property
    def head_dim(self) -> int:
        """Channels of a head of queries, keys and values. ValueError where layers differ."""
        return self._heads()[1]

    def _heads(self) -> tuple[int, int]:
        found = {(layer.kv_heads, layer.key_dim, layer.value_dim) for layer in self.layers}
        heads, key_dim, value_dim = found.pop()
        if found or key_dim != value_dim:
            raise ValueError("the layers keep different rows: ask each of them")
        return heads, key_dim

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def q_size(self) -> int:
        """Width of a query row: all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of a key (or value) row: all KV heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_growth(self) -> float:
        """What each token before a token adds to the work of computing it, as a part of the rest.

        In multiply-adds: two for each channel of a query in every layer that sees all tokens,
        against those with the weights of all layers.
        """
        weights = 2 * self.q_size + 2 * self.kv_size + 3 * self.intermediate_size
        full_layers = self.windows.count(None)
        return 2 * self.q_size * full_layers / (weights * self.hidden_size * self.num_layers)
