"""The inverse that the engine starts from: pages for a budget, and what stands beside them."""

from __future__ import annotations

import dataclasses

from kvreuse.config import EngineConfig
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import pages_within
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.decoder import decoder_bytes, step_limits
from kvreuse.ops.backend import Backend
from kvreuse.plan.buffers import process_bytes
from kvreuse.plan.weights import packed_bytes, vector_bytes
from kvreuse.sizes import format_size


@dataclasses.dataclass(frozen=True, slots=True)
class PoolPlan:
    """``num_pages`` pages of ``layout``: as many as the budget holds, one more would not fit."""

    layout: KVLayout
    num_pages: int

    @classmethod
    def within(cls, layout: KVLayout, budget: int) -> PoolPlan:
        """The pool for ``budget`` bytes. ConfigError if it holds no page."""
        return cls(layout, pages_within(layout, budget))

    @property
    def nbytes(self) -> int:
        """Bytes of the pool: those of its mapping, to the byte."""
        return self.num_pages * self.layout.page_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_pages * self.layout.page_size

    def __str__(self) -> str:
        """Size, pages and tokens, for a line of text."""
        layout = self.layout
        return (
            f"{format_size(self.nbytes)}: {self.num_pages:,} pages of "
            f"{format_size(layout.page_bytes)}, {self.num_tokens:,} tokens of "
            f"{format_size(layout.bytes_per_token)} in {layout.codec.name}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine will take, in bytes, known before it takes it."""

    weights: int
    buffers: int
    process: int
    pool: PoolPlan

    @property
    def total(self) -> int:
        """Resident memory with every page in use."""
        return self.weights + self.buffers + self.process + self.pool.nbytes

    def __str__(self) -> str:
        """One line: the parts and their sum."""
        return (
            f"{format_size(self.total)} when full: weights {format_size(self.weights)}, "
            f"KV cache {format_size(self.pool.nbytes)}, buffers {format_size(self.buffers)}, "
            f"process {format_size(self.process)}"
        )


def plan_engine(
    checkpoint: Checkpoint, layout: KVLayout, config: EngineConfig, backend: Backend
) -> EnginePlan:
    """The plan of an engine that serves a model by ``config``, known before its weights are read.

    ConfigError if the memory for the KV cache is more than there is, or holds no page.
    """
    pool = PoolPlan.within(layout, config.kv_cache_bytes())
    shape, tensors = checkpoint.shape, checkpoint.tensors.values()
    limits = step_limits(config, shape, pool.num_tokens)
    return EnginePlan(
        weights=packed_bytes(tensors, backend) + vector_bytes(tensors),
        buffers=decoder_bytes(shape, layout.page_size, limits, backend),
        process=process_bytes(shape.vocab_size),
        pool=pool,
    )
