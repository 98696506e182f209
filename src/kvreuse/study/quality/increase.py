"""By how much codecs raise a model's perplexity on some windows, the bf16 pass done once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from kvreuse.kv.codec.codec import BF16, KVCodec
from kvreuse.ops.batch import Int32Array
from kvreuse.study.quality.metrics import Float64Array, surprise
from kvreuse.study.quality.subject import Measured, Subject

Report = Callable[[int, int], None]
"""Called with what is done and what there is to do."""
Tick = Callable[[int], None]
"""Called with tokens that went through the model since the last call."""


@dataclasses.dataclass(frozen=True, slots=True)
class Increase:
    """Relative increase of perplexity, and its standard error: tokens differ in what they cost."""

    value: float
    error: float

    @property
    def at_most(self) -> float:
        """An upper estimate: one standard error above the measured value."""
        return self.value + self.error


class Increases:
    """Measures codecs against bf16 on the same windows."""

    def __init__(self, subject: Subject, windows: Sequence[Int32Array], tick: Tick) -> None:
        """Runs the windows once, in bf16."""
        self._subject, self._windows = subject, windows
        self.tick = tick
        self._reference = self._surprise(BF16)
        self.reference_ppl = float(np.exp(self._reference.mean()))

    def of(self, codec: KVCodec) -> Increase:
        """Runs the windows with ``codec``."""
        apart = self._surprise(codec) - self._reference
        mean = float(apart.mean())
        value = math.expm1(mean)
        error = float(apart.std()) / math.sqrt(len(apart))
        return Increase(value, error * math.exp(mean))

    def _surprise(self, codec: KVCodec) -> Float64Array:
        context = max(len(window) for window in self._windows)
        model = Measured(self._subject, codec, context)
        found = []
        for window in self._windows:
            start = 0
            for logits in model.logits(window):
                end = start + len(logits)
                found.append(surprise(logits, window[start + 1 : end + 1]))
                start = end
                self.tick(len(logits))
        model.close()
        return np.concatenate(found)


def ticker(windows: Sequence[Int32Array], passes: int, report: Report | None) -> Tick:
    """Adds up the tokens of some passes over windows, and reports them."""
    total, done = passes * sum(len(window) for window in windows), 0

    def tick(tokens: int) -> None:
        nonlocal done
        done = min(done + tokens, total)
        if report is not None:
            report(done, total)

    return tick
