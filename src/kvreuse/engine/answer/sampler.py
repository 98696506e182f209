"""Sampler: chooses the tokens of one request."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.candidates import Floats, Ids, choose
from kvreuse.engine.answer.guide.guide import Guide
from kvreuse.engine.answer.penalties import Penalties
from kvreuse.errors import ModelFileError

_SPARSE = 8
"""If a guide allows less than one token in so many, only the allowed logits are processed."""


class Sampler:
    """Chooses the tokens of one request, one row of logits at a time."""

    __slots__ = (
        "_banned",
        "_generator",
        "_guide",
        "_num_sampled",
        "_params",
        "_penalties",
        "_plain",
    )

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Ids,
        generator: np.random.Generator | None = None,
        *,
        stop_ids: tuple[int, ...] = (),
        guide: Guide | None = None,
    ) -> None:
        """``generator`` gives the random numbers; None: the largest logit is chosen (greedy).

        ``stop_ids`` are the tokens that end the answer: they are banned for ``min_tokens``.
        Only tokens that ``guide`` allows are chosen; it is advanced by each of them.
        """
        self._params = params
        self._penalties = Penalties(params, vocab_size, prompt_ids) if params.penalised else None
        banned = {token for token in stop_ids if token < vocab_size}
        self._banned = (
            sorted(banned) if len(banned) < vocab_size else []
        )  # at least one must remain
        self._generator = generator
        self._guide = guide
        self._num_sampled = 0
        self._plain = self._penalties is None and guide is None and not params.min_tokens

    def sample(self, logits: Floats) -> int:
        """The next token for float32[vocab] ``logits``, which are not changed.

        ModelFileError if none can be chosen because the largest logit is NaN or infinite.
        """
        ids = None
        if not self._plain:
            logits, ids = self._processed(logits)
        token = int(logits.argmax())
        largest = logits.item(token)  # NaN if any is: argmax returns the first NaN
        if not -math.inf < largest < math.inf:
            raise ModelFileError(
                f"the model's largest logit is {largest}: its weights are damaged, or too large"
            )
        if self._generator is not None:
            token = choose(logits, largest, self._params, self._generator.random())
        if ids is not None:
            token = int(ids[token])
        self._num_sampled += 1
        if self._penalties is not None:
            self._penalties.note(token)
        if self._guide is not None:
            self._guide.accept(token)
        return token

    def _processed(self, logits: Floats) -> tuple[Floats, Ids | None]:
        """The logits after penalties, guide and ban, in a copy; and their ids, None for all."""
        banned = self._banned if self._num_sampled < self._params.min_tokens else []
        if self._penalties is not None:
            logits = logits.copy()
            self._penalties.apply(logits)
        if self._guide is not None:
            return _restricted(logits, self._guide, banned)
        if banned:
            logits = logits.copy()
            logits[banned] = -math.inf
        return logits, None


def _restricted(logits: Floats, guide: Guide, banned: list[int]) -> tuple[Floats, Ids | None]:
    """The allowed logits and their ids; or, if many are allowed, all logits, -inf if not allowed.

    ``banned`` tokens are not allowed, unless the guide allows no other token.
    """
    allowed = guide.allowed
    if banned:
        others = allowed.copy()
        others[banned] = False
        allowed = others if others.any() else allowed
    if guide.num_allowed * _SPARSE < len(allowed):
        ids = allowed.nonzero()[0]
        return logits[ids], ids
    return np.where(allowed, logits, np.float32(-math.inf)), None


def make_generator(seed: int | None, engine_seed: int, request_id: str) -> np.random.Generator:
    """The generator of one request: Philox, one uniform number a token.

    Seeded by ``seed``; if that is None, by the engine's seed and the SHA-256 of the request's id,
    so that a run can be repeated and requests still differ.
    """
    if seed is not None:
        return np.random.Generator(np.random.Philox(seed))
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).digest()
    entropy = [engine_seed, int.from_bytes(digest, "little")]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
