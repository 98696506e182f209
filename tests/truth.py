"""The engine against the oracle over one text: the only place where the two meet."""

from __future__ import annotations

import copy
import pydoc_data.topics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from kvreuse.kv.codec.codec import BF16, KVCodec
from kvreuse.kv.layout import KVLayout
from kvreuse.model.decoder import Decoder
from kvreuse.model.open import open_checkpoint
from kvreuse.model.weights import load_weights
from kvreuse.ops.backend import StepLimits
from kvreuse.ops.batch import BatchInput, Float32Array
from kvreuse.ops.native import NativeBackend
from kvreuse.text.tokenizer import Tokenizer

from .oracle import Comparison, Fidelity, Oracle

TOKENS = 1024
ROWS_AT_ONCE = 128
CHARACTERS_A_TOKEN = 16  # more than any English text has


def standard_text() -> str:
    """English that every Python brings along: the topics of its interactive help."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


class EngineModel:
    """One model on the engine's kernels, for logits at every position of a text."""

    def __init__(self, path: Path, *, max_tokens: int = TOKENS, isa: str | None = None) -> None:
        """Load the model; texts may have up to ``max_tokens`` tokens."""
        self._backend = NativeBackend(isa)
        with open_checkpoint(path) as checkpoint:
            self.shape = checkpoint.shape
            self.tokenizer = Tokenizer(checkpoint.vocabulary)
            self._weights = load_weights(checkpoint, self._backend)
        self.max_tokens = max_tokens
        self._begin(BF16)

    def _begin(self, codec: KVCodec) -> None:
        """Take pages for one text, and a decoder over them."""
        layout = KVLayout.of(self.shape, codec=codec)
        pool = self._backend.pool(layout, layout.pages_for(self.max_tokens))
        self._table = np.arange(pool.num_pages, dtype=np.int32)
        limits = StepLimits(ROWS_AT_ONCE, ROWS_AT_ONCE, ROWS_AT_ONCE, self.max_tokens)
        self._decoder = Decoder(self.shape, self._weights, self._backend, pool, limits)

    def with_codec(self, codec: KVCodec) -> EngineModel:
        """The same weights over pages of another codec."""
        other = copy.copy(self)
        other._begin(codec)
        return other

    def encode(self, text: str) -> list[int]:
        """The first ``max_tokens`` tokens of ``text``."""
        some = text[: CHARACTERS_A_TOKEN * self.max_tokens]
        return self.tokenizer.encode(some, parse_special=False)[: self.max_tokens]

    def logits(self, token_ids: Sequence[int]) -> Iterator[Float32Array]:
        """Logits ``[t, vocab]`` of all positions in order, a chunk at a time, each for a moment."""
        for start in range(0, len(token_ids), ROWS_AT_ONCE):
            ids = np.array(token_ids[start : start + ROWS_AT_ONCE], dtype=np.int32)
            rows = np.arange(len(ids), dtype=np.int32)
            yield self._decoder.run(BatchInput.of_one(ids, start, self._table, rows))


def measure_all(
    oracle: Oracle, engines: Mapping[str, EngineModel], token_ids: Sequence[int]
) -> dict[str, Fidelity]:
    """How close each of several engines is; the oracle, which is slow, goes over the text once."""
    comparisons = {name: Comparison() for name in engines}
    logits = {name: engine.logits(token_ids) for name, engine in engines.items()}
    start = 0
    for truth in oracle.chunks(token_ids, ROWS_AT_ONCE):
        end = start + len(truth)
        for name, comparison in comparisons.items():
            comparison.update(truth, next(logits[name]), token_ids[start + 1 : end + 1])
        start = end
    assert start == len(token_ids)
    return {name: comparison.result() for name, comparison in comparisons.items()}
