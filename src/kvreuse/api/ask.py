"""Ask: everything that a client wants of an engine, in one frozen value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvreuse.api.outputs import Delta
from kvreuse.api.retention import DEFAULT_RETENTION, Retention
from kvreuse.api.sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]

PartOf = Callable[[int], str]
"""From a character of a prompt's text to the part of the chat that it lies in."""

Sink = Callable[[Delta], None]
"""Takes the deltas of one request in order, on the engine's thread; it must be quick."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A prompt, how it is to be answered, and what is to become of its pages."""

    token_ids: Sequence[int] | Int32Array
    """The prompt."""
    params: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    text: str | None = None
    """The text that the tokens were made of; None where the client gave tokens."""
    cache_salt: str | None = None
    """Prefixes are shared only among prompts of one salt; None is a salt of its own."""
    retention: Retention = DEFAULT_RETENTION
    """How soon it is served, and how long its pages stay."""
    request_id: str | None = None
    """None: a running number."""
    part_of: PartOf | None = dataclasses.field(default=None, repr=False)
    """Of a chat: what says which part of it a character of ``text`` lies in."""
