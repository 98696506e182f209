"""From a row of logits to a token. A row's sample depends on that row and its request alone.

The functions are pure; :class:`Sampler` binds them to one request. Weights are float32, as the
logits are, and long sums float64. The greedy path is one argmax.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.errors import ModelFileError
from kvreuse.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer[Any]]

_GROUP = 32  # logits whose maximum stands for them when the k-th largest is looked for
_FEW = 256  # weights that are sorted outright when a nucleus is looked for


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability and its rank; 1 is the most probable."""

    token_id: int
    logprob: float
    rank: int


class Sampler:
    """Chooses the tokens of one request, one row of logits at a time."""

    __slots__ = ("_banned", "_generator", "_num_sampled", "_params", "_penalties", "_plain")

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_ids: Ids,
        stop_ids: tuple[int, ...] = (),
        engine_seed: int = 0,
        request_id: str = "",
    ) -> None:
        """``stop_ids`` are the tokens that would end the answer: banned before ``min_tokens``."""
        self._params = params
        self._penalties = Penalties(params, vocab_size, prompt_ids) if params.penalised else None
        self._banned = [token for token in stop_ids if token < vocab_size]
        self._generator = None if params.greedy else make_generator(params, engine_seed, request_id)
        self._num_sampled = 0
        self._plain = params.greedy and not params.penalised and not params.min_tokens

    def sample(self, logits: Floats) -> int:
        """The next token for float32[vocab] ``logits``, which are left as they are.

        ModelFileError where none can be chosen, since the largest is no number or infinite.
        """
        if not self._plain:
            logits = self._processed(logits)
        best = int(logits.argmax())
        largest = logits.item(best)  # NaN if there is one: argmax stops at it
        if not -math.inf < largest < math.inf:
            raise ModelFileError(
                f"the model's largest logit is {largest}: its weights are damaged, or too large"
            )
        if self._generator is None:
            token = best
        else:
            ids, weights = candidates(logits, self._params)
            drawn = draw(weights, self._generator.random())
            token = drawn if ids is None else int(ids[drawn])
        self._num_sampled += 1
        if self._penalties is not None:
            self._penalties.note(token)
        return token

    def _processed(self, logits: Floats) -> Floats:
        """The logits after the ban of stop tokens and the penalties: a copy if any applies."""
        if self._penalties is not None:
            logits = logits.copy()
            self._penalties.apply(logits)
        if self._num_sampled < self._params.min_tokens and self._banned:
            logits = logits.copy()
            logits[self._banned] = -math.inf
        return logits


class Penalties:
    """Which tokens a request has seen, and what that costs their logits."""

    __slots__ = ("_additive", "_counts", "_params", "_seen")

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_ids: Ids) -> None:
        """Start with the prompt, which counts for ``repetition_penalty`` only."""
        self._params = params
        self._seen = np.zeros(vocab_size, dtype=np.bool_)
        self._seen[prompt_ids] = True
        self._counts = np.zeros(vocab_size, dtype=np.int32)
        self._additive = params.presence_penalty != 0 or params.frequency_penalty != 0

    def note(self, token: int) -> None:
        """The answer has grown by ``token``."""
        self._seen[token] = True
        self._counts[token] += 1

    def apply(self, logits: Floats) -> None:
        """Change float32[vocab] ``logits`` in place: repetition, then frequency and presence."""
        factor = np.float32(self._params.repetition_penalty)
        if factor != 1:
            ids = np.flatnonzero(self._seen)
            seen = logits[ids]
            logits[ids] = np.where(seen > 0, seen / factor, seen * factor)
        if self._additive:
            ids = np.flatnonzero(self._counts)
            times = self._counts[ids].astype(np.float32)
            logits[ids] -= np.float32(self._params.frequency_penalty) * times
            logits[ids] -= np.float32(self._params.presence_penalty)


def make_generator(
    params: SamplingParams, engine_seed: int, request_id: str
) -> np.random.Generator:
    """The generator of one request: Philox, one uniform number a token.

    Seeded by ``params.seed``; where that is None, by the engine's seed and the SHA-256 of the
    request's id, so that a run repeats while requests differ.
    """
    if params.seed is not None:
        return np.random.Generator(np.random.Philox(params.seed))
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).digest()
    entropy = [engine_seed, int.from_bytes(digest, "little")]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def candidates(logits: Floats, params: SamplingParams) -> tuple[Ids | None, Floats]:
    """The tokens that may be drawn, ids ascending (None: all), and their weights.

    A weight is ``exp((logit - largest) / temperature)``: a probability but for its scale, which
    no later step needs. ``min_p`` and ``top_k`` both keep a most probable part, so that their
    order does not matter; ``top_p`` counts what they leave as the whole, as vLLM does.
    """
    ids: Ids | None = None
    if 0 < params.top_k < len(logits):
        ids = np.flatnonzero(logits >= kth_largest(logits, params.top_k))
        logits = logits[ids]
    weights = logits - logits.max()
    weights *= np.float32(max(1 / params.temperature, 1e-30))  # above 0, for banned ones: -inf
    np.exp(weights, out=weights)
    if params.min_p > 0:
        ids, weights = _subset(ids, weights, np.flatnonzero(weights >= params.min_p))
    if params.top_p < 1:
        ids, weights = _subset(ids, weights, nucleus(weights, params.top_p))
    return ids, weights


def _subset(ids: Ids | None, weights: Floats, kept: Ids) -> tuple[Ids, Floats]:
    """``ids`` (None: all) and ``weights`` at the indices ``kept``."""
    return (kept if ids is None else ids[kept]), weights[kept]


def nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights whose sum reaches ``top_p`` of the whole.

    Of equal weights the lower index comes first. The smallest weight kept is closed in on from
    both sides, so that few weights are ever sorted: the mass above a pivot says on which side.
    """
    missing = top_p * float(weights.sum(dtype=np.float64))
    between = weights
    while len(between) > _FEW:
        upper = between >= between.mean()
        mass = float(between[upper].sum(dtype=np.float64))
        enough = mass >= missing
        closer = between[upper if enough else ~upper]
        if len(closer) == len(between):  # all alike, or the mean rounded past them
            break
        missing -= 0.0 if enough else mass
        between = closer
    between = np.sort(between)[::-1]
    reached = np.cumsum(between, dtype=np.float64)
    last = min(int(np.searchsorted(reached, missing)), len(between) - 1)
    smallest = between[last]
    ties = last + 1 - int(np.searchsorted(-between, -smallest))
    kept = np.flatnonzero(weights >= smallest)
    equal = np.flatnonzero(weights[kept] == smallest)
    return np.delete(kept, equal[ties:])


def kth_largest(values: Floats, k: int) -> float:
    """The ``k``-th largest of ``values``, 1 <= k <= len(values).

    Split into at least ``k`` groups, the k-th largest of the groups' maxima is a lower bound that
    leaves few to look at: 10 times faster than selecting among all of a vocabulary.
    """
    groups = len(values) // _GROUP
    if k <= groups:
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        values = values[values >= np.partition(maxima, groups - k)[groups - k]]
    place = len(values) - k
    return float(np.partition(values, place)[place])


def draw(weights: Floats, uniform: float) -> int:
    """The first index at which the running sum exceeds ``uniform`` (in [0, 1)) of the whole.

    The sum runs over rows of an almost square table first, then inside the row: 10 times faster
    than one running sum over a vocabulary, and in an order that depends on the length alone.
    """
    width = max(1, math.isqrt(len(weights)))
    rows = len(weights) // width
    sums = weights[: rows * width].reshape(rows, width).sum(axis=1)
    if rows * width < len(weights):
        sums = np.append(sums, weights[rows * width :].sum())
    edges = np.cumsum(sums, dtype=np.float64)
    target = uniform * float(edges[-1])
    row = int(np.searchsorted(edges, target, side="right"))
    if row < len(edges):
        inside = np.cumsum(weights[row * width : (row + 1) * width], dtype=np.float64)
        inside += edges[row - 1] if row else 0.0
        index = int(np.searchsorted(inside, target, side="right"))
        if index < len(inside):
            return row * width + index
    # Rounding put the target at the end of its row: take the last that may be drawn up to there.
    return int(np.flatnonzero(weights[: (row + 1) * width])[-1])


def top_logprobs(logits: Floats, token: int, k: int) -> list[TokenLogprob]:
    """``token``, then the ``k`` most probable tokens, by the softmax of the raw ``logits``.

    The rank of ``token`` is the number of tokens at least as probable; of equal logits the lower
    id comes first among the ``k``.
    """
    largest = logits.max()
    shifted = logits - largest
    norm = float(largest) + math.log(float(np.exp(shifted, out=shifted).sum()))
    rank = int(np.count_nonzero(logits >= logits[token]))
    found = [TokenLogprob(token, float(logits[token]) - norm, rank)]
    k = min(k, len(logits))
    if k:
        ids = np.flatnonzero(logits >= kth_largest(logits, k))
        order = ids[np.argsort(-logits[ids], kind="stable")][:k]
        found += [
            TokenLogprob(int(best), float(logits[best]) - norm, place)
            for place, best in enumerate(order, 1)
        ]
    return found
