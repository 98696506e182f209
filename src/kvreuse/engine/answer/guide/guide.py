"""Guide: the tokens that may come next in an answer of a given form. Guides: makes guides."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.engine.answer.guide.grammars import check_size, grammar_of, in_line, refused
from kvreuse.engine.answer.guide.stack import on_deep_stack
from kvreuse.engine.answer.guide.tokens import llguidance_tokenizer
from kvreuse.errors import RequestError
from kvreuse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.bool_]

MAX_COMPILED = 64
"""Compiled forms that are kept."""


class Guide:
    """The tokens that may come next in one answer, given its tokens so far and its form."""

    __slots__ = (
        "_ends",
        "_matcher",
        "_vocab_size",
        "allowed",
        "complete",
        "failure",
        "num_allowed",
    )

    def __init__(self, matcher: LLMatcher, ends: tuple[int, ...], vocab_size: int) -> None:
        """At the start of a form; ``ends`` are the end-of-sequence tokens."""
        self._matcher = matcher
        self._ends = tuple(token for token in ends if token < vocab_size)
        self._vocab_size = vocab_size
        self.complete = False
        """Whether the form has ended: no further token may come."""
        self.failure: str | None = None
        """Why the form cannot be continued, for example a limit of llguidance; None if it can."""
        self.allowed: Mask = np.zeros(vocab_size, dtype=np.bool_)
        """bool[vocab]: the tokens that may come next; ends of sequence only if the form may end."""
        self.num_allowed = 0
        """How many tokens may come next."""
        self._look()

    def fork(self) -> Guide:
        """An independent guide in the same state."""
        other: Guide = object.__new__(Guide)
        other._matcher = self._matcher.deep_copy()
        other._ends, other._vocab_size = self._ends, self._vocab_size
        other.complete, other.failure = self.complete, self.failure
        other.allowed, other.num_allowed = self.allowed, self.num_allowed
        return other

    def accept(self, token: int) -> None:
        """The answer has grown by ``token``, one of those allowed."""
        self._matcher.consume_token(token)
        self.complete = self._matcher.is_stopped()
        if self._matcher.is_error() or not self.complete:
            self._look()
            # If only an end of sequence may follow, the form has ended.
            ends = self.allowed[list(self._ends)]
            self.complete = self.num_allowed == np.count_nonzero(ends)

    def _look(self) -> None:
        """Compute the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        self.allowed = mask.view(np.bool_)
        self.num_allowed = int(np.count_nonzero(self.allowed))
        if self._matcher.is_error():
            self.failure = in_line(self._matcher.get_error())
        elif self.num_allowed == 0:
            self.failure = "no token of the model may come next"


class Guides:
    """Guides for one model. Thread-safe. llguidance is loaded with the first form."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        """``vocab_size``: the length of a row of logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._wrapped: LLTokenizer | None = None
        self._compiled: OrderedDict[StructuredOutputs, Guide] = OrderedDict()

    def guide(self, outputs: StructuredOutputs | None) -> Guide | None:
        """A guide at the start of an answer; None for ``outputs`` None.

        RequestError for a form that cannot be followed. Compiling takes a millisecond, for a large
        schema hundreds: a server calls this in another thread before it submits the request.
        """
        if outputs is None:
            return None
        with self._lock:
            compiled = self._compiled.get(outputs)
        if compiled is None:
            check_size(outputs)
            compiled = on_deep_stack(lambda: self._compile(outputs))  # without the lock
        with self._lock:
            self._compiled[outputs] = compiled
            self._compiled.move_to_end(outputs)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return compiled.fork()

    def _compile(self, outputs: StructuredOutputs) -> Guide:
        if self._tokenizer is None:
            raise RequestError("structured outputs need a tokenizer")
        with self._lock:
            if self._wrapped is None:
                self._wrapped = llguidance_tokenizer(self._tokenizer, self._vocab_size)
        from llguidance import LLMatcher  # noqa: PLC0415

        matcher = LLMatcher(self._wrapped, grammar_of(outputs), log_level=0)
        if matcher.is_error():
            raise refused(outputs, matcher.get_error())
        guide = Guide(matcher, self._tokenizer.eos_token_ids, self._vocab_size)
        if guide.failure is not None:
            raise refused(outputs, guide.failure)
        return guide
