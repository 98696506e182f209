"""MemoryPlan: the bytes of sequences of a model, and its exact inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kvreuse.kv.codec.codec import UNIFORM
from kvreuse.plan.buffers import StepShape, buffer_bytes, process_bytes
from kvreuse.shape import CacheShape, LayerShape, ModelShape

UNBOUNDED = 1 << 40
"""Tokens and sequences that the inverse looks for at most."""
CONV_BYTES = 2
"""Bytes of a number in the last inputs of a convolution, which are activations."""
STATE_BYTES = 4
"""Bytes of a number in a recurrent state: sums over the whole sequence are kept in fp32."""


def token_bytes(layer: LayerShape, codec: str) -> int:
    """Bytes that a token takes in a layer while it is kept, its planes in ``codec``."""
    key, value = UNIFORM[codec]
    return sum(
        heads * (key if kind == "key" else value).row_bytes(width, kind)
        for kind, heads, width in layer.rows
    )


def state_bytes(layer: LayerShape) -> int:
    """Bytes that a sequence takes in a layer whatever its length."""
    return layer.conv * CONV_BYTES + layer.state * STATE_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class KVPlan:
    """Keys, values and states of a model in one codec. All sizes in bytes.

    Two figures: what the architecture *needs* (to the token; layers with a window keep no more than
    it) and what this engine *reserves* (whole pages, each with all layers at full length).
    ``shared`` of the tokens of each sequence are a prefix that all have in common.
    """

    shape: CacheShape
    codec: str = "bf16"
    page_size: int = 32

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers."""
        return sum(token_bytes(layer, self.codec) for layer in self.shape.layers)

    @property
    def lasting_token_bytes(self) -> int:
        """Of one token once it has left every window."""
        lasting = (layer for layer in self.shape.layers if layer.window is None)
        return sum(token_bytes(layer, self.codec) for layer in lasting)

    @property
    def state_bytes(self) -> int:
        """Of the states of recurrent layers, which a sequence takes whatever its length."""
        return sum(map(state_bytes, self.shape.layers))

    @property
    def page_bytes(self) -> int:
        """Of a page: ``page_size`` tokens in all layers."""
        return self.page_size * self.token_bytes

    def needed(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """For ``parallel`` sequences of ``tokens`` tokens."""
        states = parallel * self.state_bytes
        return states + sum(
            _rows(layer, tokens, parallel, shared) * token_bytes(layer, self.codec)
            for layer in self.shape.layers
        )

    def pages(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """Pages that the tables of the sequences name; full ones of the prefix are named by all."""
        common = shared // self.page_size
        return common + parallel * (-(-tokens // self.page_size) - common)

    def reserved(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """For the same, in this engine."""
        states = parallel * self.state_bytes
        return states + self.pages(tokens, parallel, shared) * self.page_bytes


def _rows(layer: LayerShape, tokens: int, parallel: int, shared: int) -> int:
    """Tokens that a layer keeps of all sequences; the part of the prefix in its window once."""
    kept = layer.kept(tokens)
    common = max(0, shared - (tokens - kept))
    return common + parallel * (kept - common)


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All of a model's memory: weights, buffers of a step, the process, keys and values.

    ``by_reserved``: sequences are counted as this engine reserves them, else as the architecture
    needs them. ``weight_bytes`` is None where nothing says it. Buffers and the process are counted
    where the shape is a ModelShape: those of other models are not known.
    """

    kv: KVPlan
    weight_bytes: int | None
    by_reserved: bool
    step: StepShape

    def kv_bytes(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """Keys, values and states of the sequences."""
        count = self.kv.reserved if self.by_reserved else self.kv.needed
        return count(tokens, parallel, shared)

    def buffers(self, tokens: int, parallel: int = 1) -> int:
        """Buffers of the forward pass, for sequences of up to ``tokens`` tokens."""
        if not isinstance(self.kv.shape, ModelShape):
            return 0
        step = dataclasses.replace(self.step, sequences=parallel, positions=tokens)
        return buffer_bytes(self.kv.shape, step)

    @property
    def process(self) -> int:
        """The interpreter, its libraries and the tokenizer."""
        shape = self.kv.shape
        return process_bytes(shape.vocab_size) if isinstance(shape, ModelShape) else 0

    def fixed(self, tokens: int, parallel: int = 1) -> int:
        """Everything but the keys and values."""
        return (self.weight_bytes or 0) + self.buffers(tokens, parallel) + self.process

    def total(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """Everything."""
        return self.fixed(tokens, parallel) + self.kv_bytes(tokens, parallel, shared)

    def largest_context(self, budget: int, parallel: int = 1, shared: int = 0) -> int:
        """Tokens that each of ``parallel`` sequences can have in ``budget`` bytes.

        At most the model's limit, and ``UNBOUNDED`` where there is none; 0 if not even one. With a
        prefix of ``shared`` tokens, sequences are at least as long as that, or it is 0.
        """
        limit = self.kv.shape.context_length or UNBOUNDED
        least = max(shared, 1)
        if least > limit or self.total(least, parallel, shared) > budget:
            return 0
        return _largest(lambda n: self.total(n, parallel, shared) <= budget, least, limit)

    def largest_batch(self, budget: int, tokens: int, shared: int = 0) -> int:
        """Sequences of ``tokens`` tokens that ``budget`` bytes hold; 0 if not even one."""
        if self.total(tokens, 1, shared) > budget:
            return 0
        return _largest(lambda n: self.total(tokens, n, shared) <= budget, 1, UNBOUNDED)


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest number from ``least``, which fits, to ``most`` that fits; fitting is monotone."""
    below, above = least, least
    while above < most and fits(above):  # doubling first: most answers are small
        below, above = above, min(2 * above, most)
    if fits(above):
        return above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if fits(middle) else (below, middle)
    return below
