"""The quality report: codecs against bf16 on the windows of a text."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import BF16, KVCodec, make_codec
from kvreuse.model.calibrated import calibration_path
from kvreuse.ops.batch import Float32Array, Int32Array
from kvreuse.study.quality.increase import Report, Tick, ticker
from kvreuse.study.quality.metrics import Comparison, Quality
from kvreuse.study.quality.subject import Measured, Subject

NARROWEST = ("int4", "k8v4", "int8")
"""Codecs that have a naive form, that with the fewest bits first."""
DECODE_STEPS = 16
DIGITS = 6
"""Significant digits of a figure: the sums behind it have no more in common on two machines."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One codec: its quality, the bytes of keys and values a token, tokens a second at decoding."""

    kv_cache_dtype: str
    transform: str
    quality: Quality
    bytes_per_token: int
    bf16_bytes_per_token: int
    decode_tokens_per_second: float

    def as_json(self) -> dict[str, Any]:
        """Plain values; shares are of 1, divergences in nats."""
        quality = self.quality
        figures = {
            "ppl": quality.ppl,
            "ppl_increase": quality.ppl_increase,
            "kl_mean": quality.kl_mean,
            "kl_p99": quality.kl_p99,
            "top1": quality.top1,
        }
        return {
            "kv_cache_dtype": self.kv_cache_dtype,
            **{name: float(f"{value:.{DIGITS}g}") for name, value in figures.items()},
            "bytes_per_token": self.bytes_per_token,
            "transform": self.transform,
            "decode_tokens_per_second": float(f"{self.decode_tokens_per_second:.4g}"),
        }


def codecs_of(subject: Subject, names: Sequence[str], calibration: Path | None) -> list[KVCodec]:
    """The codecs of these names, with a calibration if one is given or was left for this model,
    and behind them the naive recipe: the narrowest of them without any transform.

    ConfigError for a name that is none, and for a calibration of another model.
    """
    path = calibration or calibration_path(subject.digest)
    found = Calibration.load(path) if calibration or path.exists() else None
    if found is not None:
        found.check_model(subject.digest)
    layers = subject.shape.layers
    codecs = [make_codec(name, layers, found) for name in names]
    naive = next((name for name in NARROWEST if name in names), NARROWEST[0])
    plain = Calibration(subject.digest, hadamard_keys=False, hadamard_values=False)
    return [*codecs, make_codec(naive, layers, plain)]


def evaluate(
    subject: Subject,
    codecs: Sequence[KVCodec],
    windows: Sequence[Int32Array],
    report: Report | None = None,
) -> list[Result]:
    """Run every window with every codec, all in step with bf16; results in the given order."""
    context = max(len(window) for window in windows)
    reference = Measured(subject, BF16, context)
    # what is plain is the reference itself
    models = [
        reference if codec.is_plain else Measured(subject, codec, context) for codec in codecs
    ]
    all_models = list({id(model): model for model in (reference, *models)}.values())
    comparisons = [Comparison() for _ in codecs]
    tick = ticker(windows, len(all_models), report)
    for window in windows:
        _compare(reference, models, comparisons, window, tick)
    results = [
        Result(
            kv_cache_dtype=codec.name,
            transform=codec.transforms(),
            quality=comparison.result(),
            bytes_per_token=model.bytes_per_token,
            bf16_bytes_per_token=reference.bytes_per_token,
            decode_tokens_per_second=_decode_rate(model, windows[-1]),
        )
        for codec, model, comparison in zip(codecs, models, comparisons, strict=True)
    ]
    for model in all_models:
        model.close()
    return results


def _compare(
    reference: Measured,
    models: Sequence[Measured],
    comparisons: Sequence[Comparison],
    window: Int32Array,
    tick: Tick,
) -> None:
    """One window, a chunk of all models at a time."""
    others: Mapping[int, Any] = {
        id(model): model.logits(window) for model in models if model is not reference
    }
    start = 0
    for truth in reference.logits(window):
        following = window[start + 1 : start + 1 + len(truth)]
        found: dict[int, Float32Array] = {id(reference): truth}
        for key, logits in others.items():
            found[key] = next(logits)
            tick(len(truth))
        for model, comparison in zip(models, comparisons, strict=True):
            comparison.update(truth, found[id(model)], following)
        start += len(truth)
        tick(len(truth))


def _decode_rate(model: Measured, window: Int32Array) -> float:
    """Steps a second of one sequence whose context is the window: the median of some."""
    seconds = []
    for _ in range(DECODE_STEPS):
        begin = time.perf_counter()
        model.decode(window)
        seconds.append(time.perf_counter() - begin)
    return 1 / statistics.median(seconds)
