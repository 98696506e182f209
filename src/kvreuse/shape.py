"""ModelShape: what the forward pass, the planner and the page keys need to know of a model."""

from __future__ import annotations

import dataclasses
from typing import Literal

RopePairs = Literal["interleaved", "half"]
RopeScaling = Literal["none", "linear", "llama3", "yarn", "factors"]
Activation = Literal["silu", "gelu_tanh"]


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
class ModelShape:
    """The shape of a decoder-only Transformer. All sizes in elements.

    ``windows[i]`` is the number of last positions that layer ``i`` sees (``None``: all of them);
    empty where every layer sees all.
    Layers with a window use ``local_rope`` where the model has one, all others ``rope``.

    ``qkv_bias``: queries, keys and values have a bias. ``qk_norm``: each head of queries and keys
    is normalised before it rotates. ``post_norms``: what attention and the feed-forward network
    give is normalised before it is added to the residual stream.
    ``attention_scale`` multiplies the products of queries and keys (``None``: 1/sqrt(head_dim)).
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeSpec
    activation: Activation = "silu"
    tied_embeddings: bool = False
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    local_rope: RopeSpec | None = None
    post_norms: bool = False
    attention_scale: float | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def q_size(self) -> int:
        """Width of a query row: all heads."""
        return self.num_heads * self.head_dim

    @property
    def attention_growth(self) -> float:
        """What each token before a token adds to the work of computing it, as a part of the rest.

        In multiply-adds: two for each channel of a query in every layer that sees all tokens,
        against those with the weights of all layers.
        """
        weights = 2 * self.q_size + 2 * self.kv_size + 3 * self.intermediate_size
        full_layers = self.windows.count(None) if self.windows else self.num_layers
        return 2 * self.q_size * full_layers / (weights * self.hidden_size * self.num_layers)

    @property
    def kv_size(self) -> int:
        """Width of a key (or value) row: all KV heads."""
        return self.num_kv_heads * self.head_dim
