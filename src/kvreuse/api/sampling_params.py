"""SamplingParams: how the tokens of one answer are chosen, and when the answer ends."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.errors import RequestError, shown

GREEDY_BELOW = 1e-5
"""A temperature below this one means greedy, as in vLLM."""
MOST_STOP_CHARACTERS = 16_384
"""Of all stop texts together."""
_LARGEST = sys.float_info.max


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names, meaning and defaults are vLLM's. Raises RequestError for a value out of range.

    Tokens are chosen from the logits in this order: ``structured_outputs``, ``min_tokens`` and the
    penalties change them, ``temperature`` divides them, ``min_p``, ``top_k`` and ``top_p`` drop
    candidates, and one uniform number of the request's own generator picks among those left.
    """

    n: int = 1
    """Answers per prompt, at most 128; they share its pages. Answer i has the seed plus i."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy: the largest logit, of equal ones the lowest id."""
    top_p: float = 1.0
    """Keep the most probable tokens that together reach this probability; (0, 1], 1 is off."""
    top_k: int = 0
    """Keep this many of the largest logits, and those equal to the last; 0 and -1 are off."""
    min_p: float = 0.0
    """Drop tokens less probable than this times the most probable one; [0, 1], 0 is off."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or answer; above 0."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the answer so far; [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once for every time the token is in the answer so far; [-2, 2]."""
    seed: int | None = None
    """Seeds the request's generator, [0, 2**64); None: from the engine's seed and the request."""
    stop: str | Sequence[str] | None = None
    """Texts that end the answer and are cut off it."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the answer; their text is left out of it."""
    ignore_eos: bool = False
    """Do not end at the model's own end-of-sequence tokens."""
    min_tokens: int = 0
    """Tokens before which the answer does not end by a stop token or a stop text."""
    max_tokens: int | None = 16
    """Tokens at which the answer ends; None: at the end of the context."""
    logprobs: int | None = None
    """Report the log-probabilities (before all the above) of this many best tokens and the one
    chosen; 0: of that one only; None: of none, which is faster."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    include_stop_str_in_output: bool = False
    """Leave the stop text, or the stop token's text, in the answer."""
    structured_outputs: StructuredOutputs | None = None
    """The form that the answer must have; it ends where the form is complete, whatever
    ``ignore_eos`` and ``min_tokens`` say."""

    def __post_init__(self) -> None:
        """Check every field and make the sequences tuples."""
        _number("temperature", self.temperature, 0, math.inf, "a number of at least 0")
        _number("top_p", self.top_p, 0, 1, "a number above 0 and at most 1", above=True)
        _number("min_p", self.min_p, 0, 1, "a number from 0 to 1")
        _number("repetition_penalty", self.repetition_penalty, 0, math.inf, "above 0", above=True)
        _number("presence_penalty", self.presence_penalty, -2, 2, "a number from -2 to 2")
        _number("frequency_penalty", self.frequency_penalty, -2, 2, "a number from -2 to 2")
        _integer("n", self.n, 1, 128, "an integer from 1 to 128")
        _integer("top_k", self.top_k, -1, math.inf, "0 or -1 (off) or a positive integer")
        _integer("min_tokens", self.min_tokens, 0, math.inf, "an integer of at least 0")
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**64 - 1, "an integer from 0 to 2**64 - 1")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, math.inf, "an integer of at least 0")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, math.inf, "an integer of at least 1")
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})"
                )
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise RequestError(
                f"structured_outputs must be StructuredOutputs, got {self.structured_outputs!r}"
            )
        object.__setattr__(self, "stop", _stop_texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_ids(self.stop_token_ids))

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """``stop``, whatever it was given as."""
        return tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, so that nothing random happens."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether a token's logit depends on the tokens before it by a penalty."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _number(
    name: str, value: Any, low: float, high: float, expected: str, *, above: bool = False
) -> None:
    """RequestError unless ``value`` is a finite number in [low, high], or (low, high]."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and low <= value <= min(high, _LARGEST)) or (above and value == low):
        raise RequestError(f"{name} must be {expected}, got {shown(value)}")


def _integer(name: str, value: Any, low: int, high: float, expected: str) -> None:
    """RequestError unless ``value`` is an int in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} must be {expected}, got {shown(value)}")


def _stop_texts(stop: Any) -> tuple[str, ...]:
    """The stop texts as a tuple. RequestError for an empty one or another type."""
    texts = (stop,) if isinstance(stop, str) else tuple(_sequence("stop", stop))
    for text in texts:
        if not isinstance(text, str) or not text:
            raise RequestError(f"stop must be a text or texts, none of them empty, got {stop!r}")
    size = sum(len(text) for text in texts)
    if size > MOST_STOP_CHARACTERS:
        raise RequestError(
            f"stop has {size} characters in all, at most {MOST_STOP_CHARACTERS} are possible"
        )
    return texts


def _stop_ids(ids: Any) -> tuple[int, ...]:
    """The stop token ids as a tuple. RequestError for anything but ids."""
    tokens = tuple(_sequence("stop_token_ids", ids))
    for token in tokens:
        _integer("stop_token_ids", token, 0, 2**31 - 1, "a list of token ids")
    return tokens


def _sequence(name: str, value: Any) -> Sequence[Any]:
    """``value``, or nothing for None. RequestError unless it is a list or a tuple."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"{name} must be a list, got {value!r}")
    return value
