"""What each layer of a model keeps of a sequence: the whole truth about its memory, in numbers."""

from __future__ import annotations

import dataclasses

from kvreuse.plan.rows import row_bytes

CONV_BYTES = 2
"""Bytes of a number in the last inputs of a convolution, which are activations."""
STATE_BYTES = 4
"""Bytes of a number in a recurrent state: sums over the whole sequence are kept in fp32."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """What one layer keeps. All zero: nothing of its own (it reads another's, or attends not).

    ``kv_heads`` heads keep a key of ``key_dim`` and a value of ``value_dim`` channels a token. With
    latent attention one row of ``latent_dim`` channels serves all heads as key and as value.
    ``window`` is the number of last tokens that are ever read again (None: all of them); a layer
    that attends in chunks reads at most a chunk.
    ``conv`` and ``state`` are numbers kept for a sequence, however long it is.
    """

    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    latent_dim: int = 0
    window: int | None = None
    conv: int = 0
    state: int = 0

    def token_bytes(self, codec: str) -> int:
        """Bytes that a token takes while it is kept."""
        key = row_bytes(codec, "key", self.key_dim) if self.key_dim else 0
        value = row_bytes(codec, "value", self.value_dim) if self.value_dim else 0
        latent = row_bytes(codec, "key", self.latent_dim) if self.latent_dim else 0
        return self.kv_heads * (key + value) + latent

    @property
    def sequence_bytes(self) -> int:
        """Bytes that a sequence takes whatever its length."""
        return self.conv * CONV_BYTES + self.state * STATE_BYTES

    @property
    def caches(self) -> bool:
        """Whether it keeps something of each token."""
        return self.kv_heads > 0 or self.latent_dim > 0

    def kept(self, tokens: int) -> int:
        """Tokens of a sequence of ``tokens`` that have to be kept, at most."""
        return tokens if self.window is None else min(tokens, self.window)


def attention(kv_heads: int, head_dim: int, window: int | None = None) -> Layer:
    """A layer of ordinary attention: multi-head, grouped or multi-query."""
    return Layer(kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim, window=window)


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """A model as its memory knows it. ``context_length`` is None where nothing limits it."""

    model_type: str
    layers: tuple[Layer, ...]
    context_length: int | None

    @property
    def sequence_bytes(self) -> int:
        """Bytes that a sequence takes whatever its length: the states of recurrent layers."""
        return sum(layer.sequence_bytes for layer in self.layers)

    def token_bytes(self, codec: str) -> int:
        """Bytes that a token takes in all layers."""
        return sum(layer.token_bytes(codec) for layer in self.layers)

    def lasting_token_bytes(self, codec: str) -> int:
        """Bytes that a token takes in the layers that keep it for good: those without a window."""
        return sum(layer.token_bytes(codec) for layer in self.layers if layer.window is None)
