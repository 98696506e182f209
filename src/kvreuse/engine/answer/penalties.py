"""Penalties: lower the logits of tokens that the prompt or the answer already has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.candidates import Floats

Ids = npt.NDArray[np.integer[Any]]


class Penalties:
    """The distinct tokens of prompt and answer, and how often the answer has each.

    The cost of a step grows with their number, not with the vocabulary.
    """

    __slots__ = ("_num_seen", "_params", "_place", "_seen", "_times")

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_ids: Ids) -> None:
        """Start with the tokens of the prompt, which count for ``repetition_penalty`` only."""
        self._params = params
        first = np.unique(prompt_ids) if params.repetition_penalty != 1 else prompt_ids[:0]
        self._num_seen = count = len(first)
        self._seen = np.zeros(count + 64, dtype=np.int64)
        self._seen[:count] = first
        self._times = np.zeros(count + 64, dtype=np.float32)
        self._place = np.full(vocab_size, -1, dtype=np.int32)
        self._place[first] = np.arange(count)

    def note(self, token: int) -> None:
        """The answer has grown by ``token``."""
        place = self._place.item(token)
        if place < 0:
            place = self._place[token] = self._num_seen
            if place == len(self._seen):
                self._seen, self._times = np.resize(self._seen, 2 * place), self._doubled()
            self._seen[place] = token
            self._num_seen += 1
        self._times[place] += 1

    def _doubled(self) -> Floats:
        return np.concatenate([self._times, np.zeros_like(self._times)])

    def apply(self, logits: Floats) -> None:
        """Change float32[vocab] ``logits`` in place: repetition, then frequency, then presence."""
        params = self._params
        ids, times = self._seen[: self._num_seen], self._times[: self._num_seen]
        values = logits[ids]
        if params.repetition_penalty != 1:
            factor = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / factor, values * factor)
        if params.frequency_penalty != 0:
            values -= np.float32(params.frequency_penalty) * times
        if params.presence_penalty != 0:
            values -= np.float32(params.presence_penalty) * (times > 0)
        logits[ids] = values
