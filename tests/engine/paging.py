"""A runner small enough to see through, whose answers are right only if the paging is.

It stores the token of every row in the row's page, through the table. Logits of a row are a
function of the tokens that it reads back from the pages of its sequence, up to its own position.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.engine import Engine
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.ops.batch import BatchInput
from kvreuse.text.tokenizer import Tokenizer

Logits = npt.NDArray[np.float32]
LogitsOf = Callable[[tuple[int, ...]], Logits]

LAYOUT = KVLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=32)
VOCAB = 101
POISON = 0xEE  # every byte of a new pool; not a token that the runner stores


def hashed_logits(tokens: tuple[int, ...]) -> Logits:
    """float32[VOCAB] logits that any change of any token changes."""
    digest = hashlib.sha256(np.array(tokens, dtype=np.int32).tobytes()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return generator.normal(size=VOCAB).astype(np.float32) * 3


class PagingRunner:
    """A runner that stores token ids in pages and reads them back. Checks every batch."""

    def __init__(
        self,
        pool: PagePool,
        logits_of: LogitsOf = hashed_logits,
        *,
        max_num_batched_tokens: int = 512,
        max_num_seqs: int = 64,
    ) -> None:
        pool.data[:] = POISON
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.page_bytes_read = 0  # it has no attention
        self.rows: list[list[int]] = []
        """Rows of each sequence of each batch, in order."""
        self._page_size = pool.layout.page_size
        self._slots = pool.data.view(np.int32)  # [pages, 4-byte words]; the first ones hold ids
        self._logits_of = logits_of

    def run(self, batch: BatchInput) -> Logits:
        """Write all rows, then read."""
        check_batch(batch, self.max_num_batched_tokens, self.max_num_seqs)
        for source, destination, rows in batch.copies:
            self._slots[destination, :rows] = self._slots[source, :rows]
        pages = batch.tables[batch.row_seq, batch.positions // self._page_size]
        self._slots[pages, batch.positions % self._page_size] = batch.ids
        self.rows.append(np.bincount(batch.row_seq).tolist())
        return np.stack(
            [self._logits_of(self._read(batch, row)) for row in batch.sample_rows]
            or [np.empty(0, dtype=np.float32)]
        )

    def _read(self, batch: BatchInput, row: int) -> tuple[int, ...]:
        """The tokens of a row's sequence up to the row itself."""
        positions = np.arange(batch.positions[row] + 1)
        table = batch.tables[batch.row_seq[row]]
        pages, slots = table[positions // self._page_size], positions % self._page_size
        return tuple(self._slots[pages, slots].tolist())


def check_batch(batch: BatchInput, max_rows: int, max_seqs: int) -> None:
    """Check all guarantees of BatchInput that can be checked from its arrays."""
    arrays = [getattr(batch, name) for name in BatchInput.__slots__ if name != "copies"]
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
    assert 1 <= len(batch.ids) == len(batch.positions) == len(batch.row_seq) <= max_rows
    assert 1 <= len(batch.tables) == len(batch.kv_len) <= max_seqs
    assert set(batch.row_seq) == set(range(len(batch.tables)))
    steps = np.diff(batch.row_seq)
    assert ((steps == 0) | (steps == 1)).all()  # rows of a sequence are contiguous
    assert (np.diff(batch.positions)[steps == 0] == 1).all()
    last_rows = np.flatnonzero(np.append(steps, 1))
    assert (batch.kv_len == batch.positions[last_rows] + 1).all()
    assert set(batch.sample_rows) <= set(last_rows)
    assert (np.diff(batch.sample_rows) > 0).all()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens; of one seed, the shorter one is the start of the longer one."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return tokens


def make_engine(
    *,
    pages: int = 64,
    logits_of: LogitsOf = hashed_logits,
    max_num_batched_tokens: int = 512,
    max_num_seqs: int = 64,
    max_model_len: int = 512,
    tokenizer: Tokenizer | None = None,
    vocab_size: int = VOCAB,
    seed: int = 0,
    enable_prefix_caching: bool = True,
) -> tuple[Engine, PagingRunner, PagePool]:
    """An engine over a pool of small pages."""
    pool = PagePool(LAYOUT, pages)
    runner = PagingRunner(
        pool,
        logits_of,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    engine = Engine(
        runner,
        KVCache(pool, b"", enable_prefix_caching=enable_prefix_caching),
        tokenizer,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        seed=seed,
    )
    return engine, runner, pool


def pages_in_use(engine: Engine) -> int:
    """Pages of running sequences; those that only the index owns can be evicted."""
    return engine.cache.pool.num_used - engine.cache.num_evictable


def forget(cache: KVCache) -> None:
    """Evict all evictable pages, so that the next prompt finds none."""
    kv, _ = cache.open(cache.lookup([0]))
    assert cache.reserve(kv, cache.num_available * cache.page_size)
    cache.close(kv, [0])


def check(engine: Engine) -> None:
    """Every page has its owners counted; free pages hold no stored token."""
    engine.check()
    pool = engine.cache.pool
    pool.data[[page for page in range(pool.num_pages) if pool.count(page) == 0]] = POISON


def finish(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nothing is left, checking the pages after every step."""
    finished: dict[str, RequestOutput] = {}
    for delta in steps(engine):
        if delta.output is not None:
            finished[delta.request_id] = delta.output
        check(engine)
    return finished


def steps(engine: Engine) -> Iterator[Delta]:
    """All deltas until no request is left; an engine that never ends is an error."""
    for _ in range(5000):
        if not engine.has_unfinished:
            return
        yield from engine.step()
    raise AssertionError("the engine comes to no end")


def greedy(prompt: Sequence[int], count: int, logits_of: LogitsOf = hashed_logits) -> list[int]:
    """The answer as a loop without engine, pages or batch: the largest logit again and again."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_of(tuple(tokens)))))
    return tokens[len(prompt) :]


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
