"""An engine on the real model that keeps the logits of every token, for tests of reuse."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.engine import Engine
from kvreuse.kv.cache import KVCache
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.model.decoder import Decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.model.weights import load_weights
from kvreuse.ops.backend import StepLimits
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.ops.native import NativeBackend
from kvreuse.text.tokenizer import Tokenizer

from .kv_codecs import codec_for

POSITIONS = 1024
ROWS = 256
SEATS = 33


class Model:
    """Weights and tokenizer, loaded once; any number of pools and runners over them."""

    def __init__(self, path: Path, codec: str = "bf16") -> None:
        self._backend = NativeBackend(threads=2)
        with open_checkpoint(path) as checkpoint:
            self.shape = checkpoint.shape
            self.layout = KVLayout.of(self.shape, codec=codec_for(self.shape, codec))
            self.tokenizer = Tokenizer(checkpoint.vocabulary)
            self._weights = load_weights(checkpoint, self._backend)

    def decoder(self, pool: PagePool, grouped: bool = True) -> Decoder:
        """A decoder over ``pool``; ``grouped``: see ``Backend.program``."""
        limits = StepLimits(rows=ROWS, samples=SEATS, sequences=SEATS, positions=POSITIONS)
        return Decoder(self.shape, self._weights, self._backend, pool, limits, grouped=grouped)


class Poisoned:
    """A decoder that fills pages with NaN patterns as soon as nobody owns them."""

    def __init__(self, decoder: Decoder, pool: PagePool) -> None:
        pool.data[:] = 0xFF
        self.max_num_batched_tokens = decoder.max_num_batched_tokens
        self.max_num_seqs = decoder.max_num_seqs
        self.last: Float32Array = np.empty((0, 0), dtype=np.float32)
        """The logits of the last batch."""
        self.rows: list[list[int]] = []
        """Rows of each sequence of each batch."""
        self._decoder, self._pool = decoder, pool
        self._used: set[int] = set()

    @property
    def page_bytes_read(self) -> int:
        """Bytes of keys and values that attention has read so far."""
        return self._decoder.page_bytes_read

    def run(self, batch: BatchInput) -> Float32Array:
        """Run, and keep the logits."""
        self.last = self._decoder.run(batch).copy()
        self.rows.append(np.bincount(batch.row_seq).tolist())
        return self.last

    def poison(self) -> None:
        """Fill the pages that became free since the last call."""
        used = {page for page in range(self._pool.num_pages) if self._pool.count(page)}
        for page in self._used - used:
            self._pool.data[page] = 0xFF
        self._used = used


@dataclasses.dataclass(frozen=True)
class Answered:
    """A request's result, and the logits that each of its tokens was chosen from."""

    output: RequestOutput
    logits: Float32Array
    index: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the answer."""
        return self.output.outputs[self.index].token_ids

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were not computed."""
        return self.output.num_cached_tokens


class Server:
    """An engine over a pool of its own; after every step its pages are checked and poisoned."""

    def __init__(
        self,
        model: Model,
        *,
        pages: int = 64,
        budget: int = ROWS,
        seats: int = SEATS,
        enable_prefix_caching: bool = True,
        evict_before_steps: int = 0,
        grouped: bool = True,
    ) -> None:
        """Before every step ``evict_before_steps`` pages are evicted, if so many can be."""
        self.pool = PagePool(model.layout, pages)
        self.runner = Poisoned(model.decoder(self.pool, grouped), self.pool)
        self.cache = KVCache(self.pool, b"test", enable_prefix_caching=enable_prefix_caching)
        self.engine = Engine(
            self.runner,
            self.cache,
            model.tokenizer,
            vocab_size=model.shape.vocab_size,
            max_model_len=POSITIONS,
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
        )
        self.outputs: dict[str, RequestOutput] = {}
        self._evict_before_steps = evict_before_steps
        self._logits: dict[str, list[Float32Array]] = defaultdict(list)

    @property
    def pages_in_use(self) -> int:
        """Pages that running sequences own; those of the index alone can be evicted."""
        return self.pool.num_used - self.cache.num_evictable

    def add(self, ids: Sequence[int], params: SamplingParams, salt: str | None = None) -> str:
        """Queue a request."""
        return self.engine.submit(Ask(ids, params, cache_salt=salt)).request_id

    def abort(self, request_id: str) -> None:
        """End a request."""
        output = self.engine.abort(request_id)
        if output is not None:
            self.outputs[request_id] = output

    def step(self) -> list[Delta]:
        """One step, and everything that must hold after it."""
        self.evict(min(self._evict_before_steps, self.cache.num_evictable))
        deltas = self.engine.step()
        rows = {request.request_id: row for row, request in enumerate(self.engine.sampling)}
        for delta in deltas:
            name = f"{delta.request_id}/{delta.index}" if delta.index else delta.request_id
            # An answer that was just forked has its first token from the leader's logits.
            row = rows.get(name, rows.get(delta.request_id, -1))
            self._logits[name].append(self.runner.last[row])
            if delta.output is not None:
                self.outputs[delta.request_id] = delta.output
        self.engine.check()
        self.runner.poison()
        return deltas

    def evict(self, pages: int) -> None:
        """Evict ``pages`` pages, and poison them."""
        if pages:
            kv, _ = self.cache.open(self.cache.lookup([0]))
            before = self.cache.num_evicted
            assert self.cache.reserve(kv, (self.cache.pool.num_free + pages) * self.cache.page_size)
            assert self.cache.num_evicted >= before + pages
            self.cache.close(kv, [0])
            self.engine.check()
            self.runner.poison()

    def finish(self) -> None:
        """Step until nothing is left."""
        for _ in range(5000):
            if not self.engine.has_unfinished:
                assert self.pages_in_use == 0
                return
            self.step()
        raise AssertionError("the engine comes to no end")

    def answered(self, request_id: str, index: int = 0) -> Answered:
        """What became of a request's answer ``index``."""
        name = f"{request_id}/{index}" if index else request_id
        return Answered(self.outputs[request_id], np.array(self._logits[name]), index)

    def answer(
        self, ids: Sequence[int], params: SamplingParams, salt: str | None = None
    ) -> Answered:
        """Serve one request to its end."""
        request_id = self.add(ids, params, salt)
        self.finish()
        return self.answered(request_id)
