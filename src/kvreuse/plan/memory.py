"""MemoryPlan: the bytes of sequences of a model, and its exact inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kvreuse.plan.buffers import StepShape, buffer_bytes, process_bytes
from kvreuse.plan.geometry import Geometry, Layer
from kvreuse.shape import ModelShape

UNBOUNDED = 1 << 40
"""Tokens and sequences that the inverse looks for at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class KVPlan:
    """Keys, values and states of a model in one codec. All sizes in bytes.

    Two figures: what the architecture *needs* (to the token; layers with a window keep no more than
    it) and what this engine *reserves* (whole pages, each with all layers at full length).
    ``shared`` of the tokens of each sequence are a prefix that all have in common.
    """

    geometry: Geometry
    codec: str = "bf16"
    page_size: int = 32

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers."""
        return self.geometry.token_bytes(self.codec)

    @property
    def lasting_token_bytes(self) -> int:
        """Of one token once it has left every window."""
        return self.geometry.lasting_token_bytes(self.codec)

    @property
    def page_bytes(self) -> int:
        """Of a page: ``page_size`` tokens in all layers."""
        return self.page_size * self.token_bytes

    def needed(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """For ``parallel`` sequences of ``tokens`` tokens."""
        states = parallel * self.geometry.sequence_bytes
        return states + sum(
            _rows(layer, tokens, parallel, shared) * layer.token_bytes(self.codec)
            for layer in self.geometry.layers
        )

    def pages(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """Pages that the tables of the sequences name; full ones of the prefix are named by all."""
        common = shared // self.page_size
        return common + parallel * (-(-tokens // self.page_size) - common)

    def reserved(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """For the same, in this engine."""
        states = parallel * self.geometry.sequence_bytes
        return states + self.pages(tokens, parallel, shared) * self.page_bytes


def _rows(layer: Layer, tokens: int, parallel: int, shared: int) -> int:
    """Tokens that a layer keeps of all sequences; the part of the prefix in its window once."""
    kept = layer.kept(tokens)
    common = max(0, shared - (tokens - kept))
    return common + parallel * (kept - common)


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All of a model's memory: weights, buffers of a step, the process, keys and values.

    ``by_reserved``: sequences are counted as this engine reserves them, else as the architecture
    needs them. ``weight_bytes`` is None where nothing says it, ``shape`` where this engine does
    not serve the model: then neither buffers nor the process are counted.
    """

    kv: KVPlan
    weight_bytes: int | None
    shape: ModelShape | None
    by_reserved: bool
    step: StepShape

    def kv_bytes(self, tokens: int, parallel: int = 1, shared: int = 0) -> int:
        """Keys, values and states of the sequences."""
        count = self.kv.reserved if self.by_reserved else self.kv.needed
        return count(tokens, parallel, shared)

    def buffers(self, tokens: int, parallel: int = 1) -> int:
        """Buffers of the forward pass, for sequences of up to ``tokens`` tokens."""
        if self.shape is None:
            return 0
        step = dataclasses.replace(self.step, sequences=parallel, positions=tokens)
        return buffer_bytes(self.shape, step)

    @property
    def process(self) -> int:
        """The interpreter, its libraries and the tokenizer."""
        return 0 if self.shape is None else process_bytes(self.shape.vocab_size)

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
        limit = self.kv.geometry.context_length or UNBOUNDED
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
