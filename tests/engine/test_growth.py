"""Nothing grows with the tokens generated but the tokens, and the index by a node a page."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.engine import Engine
from kvreuse.kv.cache import KVCache
from kvreuse.kv.pool import PagePool
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.text.tokenizer import Tokenizer

from .paging import LAYOUT, resident_bytes

TOKENS = 2000


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Iterator[Tokenizer]:
    """The real model's."""
    with open_checkpoint(model_path) as checkpoint:
        yield Tokenizer(checkpoint.vocabulary)


class RowsRunner:
    """Logits from a few prepared rows, by position: allocates nothing that is kept."""

    max_num_batched_tokens = 512
    max_num_seqs = 8
    page_bytes_read = 0

    def __init__(self, vocab_size: int) -> None:
        self.rows = np.random.default_rng(0).normal(size=(7, vocab_size)).astype(np.float32)

    def run(self, batch: BatchInput) -> Float32Array:
        """One of the rows for each row that samples."""
        rows: Float32Array = self.rows[batch.positions[batch.sample_rows] % len(self.rows)]
        return rows


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "stop": ["no such text"]},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "frequency_penalty": 0.1},
    ],
    ids=repr,
)
def test_two_thousand_tokens_leave_no_trace(
    tokenizer: Tokenizer, options: dict[str, float]
) -> None:
    for token in range(tokenizer.vocab_size):  # each is cached once, for all decoders
        tokenizer.token_bytes(token)
    runner = RowsRunner(tokenizer.vocab_size)
    pool = PagePool(LAYOUT, 256)
    cache = KVCache(pool, b"")
    engine = Engine(runner, cache, tokenizer, vocab_size=tokenizer.vocab_size, max_model_len=8192)
    params = SamplingParams(**options, max_tokens=TOKENS + 200, ignore_eos=True)  # type: ignore[arg-type]
    engine.submit(Ask([1, 2, 3], params))
    for _ in range(100):
        engine.step()
    gc.collect()
    blocks, resident = sys.getallocatedblocks(), resident_bytes()
    for _ in range(TOKENS):
        engine.step()
    gc.collect()
    assert sys.getallocatedblocks() - blocks <= 10 * TOKENS // LAYOUT.page_size, "blocks"
    assert resident_bytes() - resident < 1 << 20
    assert engine.num_running == 1
