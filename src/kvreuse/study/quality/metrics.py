"""How far next-token distributions are from those of a reference, from logits, rows at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from kvreuse.ops.batch import Float32Array, Int32Array

Float64Array = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 20
"""Logits treated at once: what a core's cache holds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """What a comparison found. KL is KL(reference || candidate) in nats, over all positions.

    ``top1`` is the share of positions at which both prefer the same token; perplexities count the
    positions whose next token is known.
    """

    tokens: int
    reference_ppl: float
    ppl: float
    kl_mean: float
    kl_p99: float
    top1: float

    @property
    def ppl_increase(self) -> float:
        """Relative to the reference: 0.01 is 1% more."""
        return self.ppl / self.reference_ppl - 1


class Comparison:
    """Collects rows; :meth:`update` as often as there are some, then :meth:`result`."""

    def __init__(self) -> None:
        self._kl: list[Float64Array] = []
        self._agree = self._targets = 0
        self._reference_nll = self._nll = 0.0

    def update(
        self, reference: Float32Array, candidate: Float32Array, next_ids: Int32Array
    ) -> None:
        """Add logits ``[t, vocab]`` of both, and the token that follows each row.

        ``next_ids`` may be one shorter than the rows: nothing follows the last token of a window.
        """
        step = max(1, BLOCK_ELEMENTS // reference.shape[1])
        for start in range(0, len(reference), step):
            rows = slice(start, start + step)
            self._add(reference[rows], candidate[rows], next_ids[rows])

    def _add(self, reference: Float32Array, candidate: Float32Array, next_ids: Int32Array) -> None:
        top = reference.max(axis=1)
        weights = np.exp(reference - top[:, None])
        total = weights.sum(axis=1, dtype=np.float64)
        log_p, log_q = top + np.log(total), _log_sum(candidate)
        # Centred before they are summed: small terms lose fewer digits to cancellation.
        apart = reference - candidate
        apart -= (log_p - log_q).astype(np.float32)[:, None]
        apart *= weights
        self._kl.append(apart.sum(axis=1, dtype=np.float64) / total)
        self._agree += int(np.sum(reference.argmax(axis=1) == candidate.argmax(axis=1)))
        rows = np.arange(len(next_ids))
        self._targets += len(rows)
        self._reference_nll += float((log_p[rows] - reference[rows, next_ids]).sum())
        self._nll += float((log_q[rows] - candidate[rows, next_ids]).sum())

    def result(self) -> Quality:
        """The figures over all rows so far (at least one of them with a next token)."""
        kl = np.concatenate(self._kl)
        return Quality(
            tokens=len(kl),
            reference_ppl=float(np.exp(self._reference_nll / self._targets)),
            ppl=float(np.exp(self._nll / self._targets)),
            kl_mean=float(kl.mean()),
            kl_p99=float(np.quantile(kl, 0.99)),
            top1=self._agree / len(kl),
        )


def surprise(logits: Float32Array, next_ids: Int32Array) -> Float64Array:
    """-log of the probability of each next token, in nats; ``next_ids`` as for a comparison."""
    step = max(1, BLOCK_ELEMENTS // logits.shape[1])
    parts = []
    for start in range(0, len(next_ids), step):
        ids = next_ids[start : start + step]
        rows = logits[start : start + len(ids)]
        parts.append(_log_sum(rows) - rows[np.arange(len(ids)), ids])
    return np.concatenate(parts) if parts else np.zeros(0)


def _log_sum(logits: Float32Array) -> Float64Array:
    """log of the sum of the exponentials of each row."""
    top = logits.max(axis=1)
    return np.asarray(top + np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)))
