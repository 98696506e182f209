"""What the comparison asks of an engine. Standard library only: every environment imports this."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence

STEP_TOKENS = 512
"""Tokens that an engine may compute in one step, the same for all."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """How an engine is to be loaded. ``model`` is the path of a GGUF file."""

    model: str
    threads: int
    capacity: int
    """Tokens that its cache must hold at once."""
    max_len: int
    """Tokens of the longest sequence, prompt and answer."""
    max_seqs: int
    """Sequences that it must serve at once."""
    reuse: bool = True
    """Whether it may reuse keys and values that it has."""
    scores: bool = False
    """Whether answers must have their scores; this may cost time."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Tokens of one answer; seconds from the call to its first and to its last token.

    ``scores`` has one number for each token: its logit or its log-probability, whichever the
    engine shows, with all the bits it shows. Empty where they were not asked for.
    """

    ids: list[int]
    scores: list[float]
    first: float
    last: float


class Adapter(ABC):
    """One engine with one model. Answers are greedy and do not end at an end-of-sequence token."""

    version: str
    settings: str
    """What a reader should know about how it is used; one line."""

    @abstractmethod
    def __init__(self, setup: Setup) -> None:
        """Load the model."""

    def prepare(self, sequences: int, tokens: int, shared: int) -> None:  # noqa: B027
        """Told, untimed, what comes next: ``tokens`` is the longest of them, with its answer.

        ``shared`` of these tokens are the same in all. For engines that fit their memory to it.
        """

    @abstractmethod
    def answer(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        """Answer all prompts, given at once; what they share with the last ones may be reused."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back."""
