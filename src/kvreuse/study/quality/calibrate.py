"""Calibration: what a text teaches, then widths for ``auto`` by what they really cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import AUTO, make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.ops.batch import Int32Array
from kvreuse.study.quality.increase import Increase, Increases, Report, ticker
from kvreuse.study.quality.learn import PROBE_WINDOWS, learn
from kvreuse.study.quality.subject import Subject
from kvreuse.study.quality.texts import Text, windows_of
from kvreuse.study.quality.widths import (
    INT4,
    INT8,
    MOST_TRIALS,
    Bytes,
    Mixture,
    ladder,
    narrowest,
    rates,
    search,
    uniform,
)

Stage = Callable[[str], AbstractContextManager[Report | None]]
"""From what is going on, in words, to what takes (done, total)."""

LEARN_CONTEXT, LEARN_WINDOWS = 1024, 4 + PROBE_WINDOWS
"""Tokens and number of the windows that are learnt from."""
TRIAL_CONTEXT, TRIAL_WINDOWS = 2048, 4
"""Those on which perplexity is measured: behind the others, where the text is long enough."""
FIXED = {"int8": (INT8, INT8), "k8v4": (INT8, INT4), "int4": (INT4, INT4)}
"""Codecs whose increase is measured besides that of ``auto``: widths of their keys and values."""


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A calibration and what was measured for it: the perplexity of bf16 on ``tokens`` tokens, the
    increase and the bytes a token of each codec, the last of which is ``auto``."""

    calibration: Calibration
    tokens: int
    reference_ppl: float
    increases: dict[str, Increase]
    bytes_per_token: dict[str, int]


def calibrate(subject: Subject, text: Text, bound: float, stage: Stage) -> Calibrated:
    """Calibrate a model on a text. ``auto`` gets the narrowest widths found that raise perplexity
    by at most ``bound`` (0.005 is half a per cent), or bf16 everywhere if none do.

    ConfigError for a text that is too short.
    """
    shape, tokenizer = subject.shape, subject.tokenizer
    context = min(LEARN_CONTEXT, shape.context_length)
    windows = windows_of(text, tokenizer, context, LEARN_WINDOWS)
    if len(windows) < 2:
        raise ConfigError(
            f"{text.name} is too short: calibration needs at least {2 * context:,} tokens, "
            f"{LEARN_WINDOWS * LEARN_CONTEXT + TRIAL_WINDOWS * TRIAL_CONTEXT:,} are better"
        )
    with stage("Keys and values") as report:
        learnt = learn(subject, windows, report)
    trials = _trial_windows(subject, text, len(windows) * context)
    with stage("Perplexity of codecs") as report:
        measured = Increases(subject, trials, ticker(trials, 1 + len(FIXED), report))
        found = {name: measured.of(make_codec(name, shape.layers, learnt)) for name in FIXED}
    with stage("Widths for auto") as report:
        measured.tick = ticker(trials, MOST_TRIALS, report)
        chosen = _mixture(subject, learnt, found, bound, measured)
    found[AUTO] = chosen.increase
    tokens = sum(len(window) for window in trials)
    calibration = dataclasses.replace(
        learnt,
        widths=chosen.widths,
        increases={name: round(increase.value, 6) for name, increase in found.items()},
        text=f"{text.name}, {tokens:,} tokens",
    )
    sizes = {
        name: KVLayout.of(shape, codec=make_codec(name, shape.layers, calibration)).bytes_per_token
        for name in ("bf16", *found)
    }
    return Calibrated(calibration, tokens, measured.reference_ppl, found, sizes)


def _mixture(
    subject: Subject,
    learnt: Calibration,
    found: Mapping[str, Increase],
    bound: float,
    measured: Increases,
) -> Mixture:
    """The narrowest widths within the bound, uniform ones among them; else bf16 everywhere."""
    shape, errors = subject.shape, learnt.errors
    assert errors is not None

    def measure(widths: Bytes) -> Increase:
        calibration = dataclasses.replace(learnt, widths=widths)
        return measured.of(make_codec(AUTO, shape.layers, calibration))

    _, layers, kinds, heads = errors.shape
    tried = [
        Mixture(uniform((layers, kinds, heads), keys, values), found[name])
        for name, (keys, values) in FIXED.items()
    ]
    rungs = ladder(errors, shape.head_dim, rates(errors, *(found[name] for name in FIXED)))
    tried += search(rungs, found["int4"], bound, measure)
    best = narrowest(tried, shape.head_dim, bound)
    return best or Mixture(rungs[-1].widths, measure(rungs[-1].widths))


def _trial_windows(subject: Subject, text: Text, used: int) -> list[Int32Array]:
    """Windows behind the first ``used`` tokens; the last ones of a text that has none there."""
    context = min(TRIAL_CONTEXT, subject.shape.context_length)
    first = -(-used // context)
    windows = windows_of(text, subject.tokenizer, context, first + TRIAL_WINDOWS)
    return windows[first:] or windows[-1:]
