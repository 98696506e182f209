"""Log-probabilities, for requests that ask for them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kvreuse.engine.answer.candidates import Floats, largest_k


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability and its rank; 1 is the most probable."""

    token_id: int
    logprob: float
    rank: int


def top_logprobs(logits: Floats, token: int, k: int) -> list[TokenLogprob]:
    """``token``, then the ``k`` most probable tokens, by the softmax of the raw ``logits``.

    The rank of ``token`` is the number of tokens at least as probable; of equal logits the lower
    id comes first among the ``k``.
    """
    largest = logits.max()
    shifted = logits - largest
    norm = float(largest) + math.log(float(np.exp(shifted, out=shifted).sum()))
    chosen = logits[token]
    rank = int(np.count_nonzero(logits >= chosen))
    found = [TokenLogprob(token, float(chosen) - norm, rank)]
    k = min(k, len(logits))
    if k:
        ids = largest_k(logits, k)
        ids = ids[np.argsort(-logits[ids], kind="stable")][:k]
        found += [
            TokenLogprob(best, logit - norm, place)
            for place, (best, logit) in enumerate(
                zip(ids.tolist(), logits[ids].tolist(), strict=True), 1
            )
        ]
    return found
