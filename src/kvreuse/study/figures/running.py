"""What measurements share: an engine of the right size, repeats within a budget, medians."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.llm import LLM
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint
from kvreuse.study.figures.record import Options

T = TypeVar("T")


def layout_of(model: str) -> tuple[KVLayout, int]:
    """The pages of a model in bf16, and the longest sequence that it was made for."""
    with open_checkpoint(resolve(model)) as checkpoint:
        shape = checkpoint.shape
    return KVLayout.of(shape), shape.context_length


def engine(options: Options, length: int, sequences: int = 1, **settings: Any) -> LLM:
    """An LLM with room for ``sequences`` of ``length`` tokens, and as much again for reuse.

    ConfigError if the model was not made for sequences of that length.
    """
    layout, limit = layout_of(options.model)
    if length > limit:
        raise ConfigError(
            f"--tokens {options.tokens} needs sequences of {length:,} tokens, "
            f"but the model was made for {limit:,}: lower it"
        )
    pages = 2 * sequences * (layout.pages_for(length) + 1)
    return LLM(
        options.model,
        kv_cache_memory=pages * layout.page_bytes,
        max_model_len=length,
        threads=options.threads,
        **settings,
    )


def greedy(max_tokens: int) -> SamplingParams:
    """The most probable token each time, to the very end."""
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)


def held_pages(llm: LLM) -> int:
    """Pages that running sequences hold, each counted once; not what rests in the cache."""
    return llm.pool.num_used - llm.cache.num_evictable


def repeated(run: Callable[[], T], options: Options) -> list[T]:
    """``run`` as often as the options say, at least once, and no longer than the budget allows."""
    start = time.perf_counter()
    runs = [run()]
    while len(runs) < options.repeats:
        spent = time.perf_counter() - start
        if spent + spent / len(runs) > options.budget:
            break
        runs.append(run())
    return runs


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """The median over the runs, point by point."""
    return [statistics.median(point) for point in zip(*runs, strict=True)]


def random_tokens(seed: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """``count`` tokens that no prompt of another seed has."""
    drawn: list[int] = np.random.default_rng(seed).integers(1, vocab_size, count).tolist()
    return drawn


def resident_bytes() -> int:
    """What the system counts as this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
