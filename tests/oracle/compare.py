"""How far apart two models' next-token distributions are, from their logits, rows at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

ROWS_AT_ONCE = 64

MAX_MEAN_KL = 5e-3
MIN_TOP1 = 0.94
MAX_PERPLEXITY_DRIFT = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Fidelity:
    """What a comparison found, over ``tokens`` positions of one text.

    ``mean_kl`` is the mean of KL(reference || candidate) in nats, ``top1`` the share of positions
    at which both prefer the same token; perplexities count the positions whose next token is known.
    """

    tokens: int
    mean_kl: float
    max_kl: float
    top1: float
    reference_perplexity: float
    perplexity: float

    @property
    def perplexity_ratio(self) -> float:
        """The candidate's perplexity over the reference's."""
        return self.perplexity / self.reference_perplexity

    def faults(self) -> list[str]:
        """What is worse than the engine promises, with its bound; empty where all is well."""
        drift = abs(self.perplexity_ratio - 1)
        bounds = [
            (self.mean_kl >= MAX_MEAN_KL, f"mean KL {self.mean_kl:.2e}, bound {MAX_MEAN_KL:.0e}"),
            (self.top1 < MIN_TOP1, f"top-1 {self.top1:.2%}, bound {MIN_TOP1:.0%}"),
            (
                drift >= MAX_PERPLEXITY_DRIFT,
                f"perplexity {drift:.2%} off, bound {MAX_PERPLEXITY_DRIFT:.0%}",
            ),
        ]
        return [fault for broken, fault in bounds if broken]


class Comparison:
    """Sums over rows, in float64; ``update`` as often as there are rows, then ``result``."""

    def __init__(self) -> None:
        self._tokens = self._agree = self._targets = 0
        self._kl = self._max_kl = 0.0
        self._reference_nll = self._nll = 0.0

    def update(self, reference: Float32, candidate: Float32, next_ids: Sequence[int]) -> None:
        """Add rows ``[t, vocab]`` of both and the token that follows each row.

        ``next_ids`` may be one shorter than the rows: nothing follows the last token of a text.
        """
        if reference.shape != candidate.shape:
            raise ValueError(f"logits of {reference.shape} and of {candidate.shape}")
        if len(next_ids) not in (len(reference), len(reference) - 1):
            raise ValueError(f"{len(next_ids)} next tokens for {len(reference)} rows")
        p, q = _log_softmax(reference), _log_softmax(candidate)
        kl = np.sum(np.exp(p) * (p - q), axis=1)
        self._tokens += len(kl)
        self._kl += float(kl.sum())
        self._max_kl = max(self._max_kl, float(kl.max(initial=0.0)))
        self._agree += int(np.sum(reference.argmax(axis=1) == candidate.argmax(axis=1)))
        rows, ids = np.arange(len(next_ids)), np.asarray(next_ids, dtype=np.int64)
        self._targets += len(ids)
        self._reference_nll -= float(p[rows, ids].sum())
        self._nll -= float(q[rows, ids].sum())

    def result(self) -> Fidelity:
        """The figures over all rows so far (at least one row with a next token)."""
        return Fidelity(
            tokens=self._tokens,
            mean_kl=self._kl / self._tokens,
            max_kl=self._max_kl,
            top1=self._agree / self._tokens,
            reference_perplexity=float(np.exp(self._reference_nll / self._targets)),
            perplexity=float(np.exp(self._nll / self._targets)),
        )


def compare(reference: Float32, candidate: Float32, token_ids: Sequence[int]) -> Fidelity:
    """Compare logits ``[T, vocab]`` of the ``T`` tokens of one text."""
    comparison = Comparison()
    for start in range(0, len(token_ids), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        following = token_ids[start + 1 : start + 1 + ROWS_AT_ONCE]
        comparison.update(reference[rows], candidate[rows], following)
    return comparison.result()


def _log_softmax(logits: Float32) -> Float64:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.sum(np.exp(wide), axis=1, keepdims=True))
    return wide
