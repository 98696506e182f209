"""What passes between the engine and a runner, and a request with its tokens and two cursors."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvreuse.outputs import Logprob
from kvreuse.sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class BatchInput:
    """Everything a forward pass needs: T token rows of B sequences, of which S rows sample.

    The rows of one sequence are contiguous, in ascending position. The forward pass writes the
    keys and values of every row to pages before attention reads them. The arrays are C-contiguous
    and may be reused by the sender: they are valid until the runner returns.
    """

    ids: Int32Array
    """int32[T]: the tokens."""
    positions: Int32Array
    """int32[T]: their positions in their sequences."""
    row_seq: Int32Array
    """int32[T]: the sequence of each row, an index into ``tables``."""
    tables: Int32Array
    """int32[B, P]: page ids in order of position; unused entries are 0."""
    kv_len: Int32Array
    """int32[B]: tokens of each sequence that are in pages after this step."""
    sample_rows: Int32Array
    """int32[S]: the rows whose logits are wanted, ascending."""
    copies: tuple[tuple[int, int, int], ...] = ()
    """(source page, destination page, tokens), done before anything else."""


class Runner(Protocol):
    """Runs the forward pass of a model over the pages of a pool."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Rows that one batch may have."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences that one batch may have."""

    def run(self, batch: BatchInput) -> Float32Array:
        """float32[S, vocab]: the logits of ``sample_rows``, valid until the next run."""


class Request:
    """A prompt and its answer so far: one array of tokens, and two cursors into it.

    ::

        |<------- num_computed_tokens ------->|            keys and values are in pages
        |<---------------- num_tokens --------------->|    known: the prompt, then the answer
        |<-------------- num_kv_tokens, room in pages ------------->|

    A step computes tokens from the first cursor towards the second; when it reaches it, the row of
    the last token gives the next one. There are no phases. The array is made at admission,
    together with the pages, so that a token allocates nothing.
    """

    __slots__ = (
        "_tokens",
        "arrival_time",
        "cumulative_logprob",
        "first_scheduled_time",
        "first_token_time",
        "last_token",
        "logprobs",
        "max_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "pages",
        "params",
        "prompt",
        "request_id",
        "table",
    )

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        *,
        prompt_ids: Int32Array,
        params: SamplingParams,
        max_tokens: int,
        arrival_time: float,
    ) -> None:
        """``max_tokens`` is what this request may generate, whatever ``params`` allows."""
        self.request_id = request_id
        self.prompt = prompt
        self.params = params
        self.max_tokens = max_tokens
        self.num_prompt_tokens = self.num_tokens = len(prompt_ids)
        self.num_computed_tokens = 0
        self.pages: list[int] = []
        self.table: Int32Array = np.empty(0, dtype=np.int32)
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self.arrival_time = arrival_time
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token = int(prompt_ids[-1])
        self._tokens = prompt_ids

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that need room in pages: all but the last that may be generated."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> Int32Array:
        """int32[num_prompt_tokens]."""
        return self._tokens[: self.num_prompt_tokens]

    @property
    def generated_ids(self) -> Int32Array:
        """int32[num_generated_tokens]."""
        return self._tokens[self.num_prompt_tokens : self.num_tokens]

    def tokens(self, start: int, end: int) -> Int32Array:
        """int32[end - start]: the tokens at these positions."""
        return self._tokens[start:end]

    def open(self, pages: list[int], now: float) -> None:
        """Take ``pages``, and room for every token that may come."""
        self.pages = pages
        self.table = np.array(pages, dtype=np.int32)
        self.first_scheduled_time = now
        grown = np.empty(self.num_prompt_tokens + self.max_tokens, dtype=np.int32)
        grown[: self.num_prompt_tokens] = self._tokens
        self._tokens = grown

    def append(self, token: int) -> None:
        """Put the next token at the end of the answer."""
        self._tokens[self.num_tokens] = token
        self.last_token = token
        self.num_tokens += 1
