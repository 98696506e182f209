"""What a text teaches about a model's keys and values: transforms, clips, and errors by width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import LayerTransform
from kvreuse.kv.codec.planes import INT4
from kvreuse.ops.batch import Float32Array, Int32Array
from kvreuse.shape import ModelShape
from kvreuse.study.quality.attention import Probe
from kvreuse.study.quality.capture import Capture, LayerRows, layer_rope
from kvreuse.study.quality.errors import LayerErrors, layer_errors, plane_error, stored_form
from kvreuse.study.quality.increase import Report
from kvreuse.study.quality.projection import OutputWeights
from kvreuse.study.quality.subject import Subject
from kvreuse.study.quality.transforms import POWERS, Moments

PROBE_WINDOWS = 2
"""Windows on which errors are tried; the others are for means."""
HORIZON = 4096
"""Positions that transforms are made for, or the model's context; others are served as well."""
QUERIES = 24
"""Positions of a window from which attention is tried."""


def learn(
    subject: Subject, windows: Sequence[Int32Array], report: Report | None = None
) -> Calibration:
    """Constants, scales, clips and errors from two or more windows; nothing else is in it."""
    layers = subject.shape.num_layers
    total = len(windows) + layers
    probing = min(PROBE_WINDOWS, len(windows) - 1)
    size = max(len(window) for window in windows)
    horizon = min(HORIZON, subject.shape.context_length)
    moments = [
        Moments(subject.shape, layer_rope(subject.shape, layer), horizon) for layer in range(layers)
    ]
    probed: list[list[LayerRows]] = []
    capture = Capture(subject, size)
    for i, window in enumerate(windows):
        positions = _query_positions(len(window))
        if i < len(windows) - probing:
            rows = capture.window(window, positions, start=None)
            for layer, moment in enumerate(moments):
                moment.add(rows[layer])
        else:  # early and late ones in turn
            late = (i + 1 - len(windows)) % 2 == 0
            probed.append(capture.window(window, positions, start=(horizon - size) * late))
        if report is not None:
            report(i + 1, total)
    capture.close()
    output = OutputWeights(subject)
    found = []
    for layer, moment in enumerate(moments):
        here = [rows[layer] for rows in probed]
        behind = output.of(subject.weights.layers[layer])
        transform = best_transform(subject.shape, layer, here, behind, moment)
        errors = layer_errors(subject.shape, layer, here, behind, transform)
        found.append((transform, errors))
        if report is not None:
            report(len(windows) + layer + 1, total)
    return _collected(subject.digest, found)


def best_transform(
    shape: ModelShape,
    layer: int,
    windows: Sequence[LayerRows],
    behind: Float32Array,
    moment: Moments,
) -> LayerTransform:
    """Constant, scale and rotation; of the scale, head by head, the power that suits int4 best."""
    full, tried = moment.full_scale(), []
    for power in POWERS:
        scaled = LayerTransform(moment.constant, full ** np.float32(power), True, True)
        rows, rotated = stored_form(shape, windows, behind, scaled)
        for head in range(shape.num_kv_heads):
            probes = [Probe.of(shape, layer, window, head, rotated) for window in rows]
            tried.append(plane_error(probes, "key", INT4, 1.0))
    best = np.reshape(tried, (len(POWERS), -1)).argmin(axis=0)
    powers = np.array(POWERS, dtype=np.float32)[best]
    return LayerTransform(moment.constant, full ** powers[:, None], True, True)


def _query_positions(tokens: int) -> Int32Array:
    """Up to QUERIES positions, evenly over a window but for its first tokens."""
    return np.unique(np.linspace(tokens // QUERIES, tokens - 1, QUERIES).astype(np.int32))


def _collected(digest: str, layers: Sequence[tuple[LayerTransform, LayerErrors]]) -> Calibration:
    transforms, errors = zip(*layers, strict=True)
    return Calibration(
        model_digest=digest,
        constants=np.stack([transform.constant for transform in transforms]),
        scales=np.stack([transform.scale for transform in transforms]),
        clips=np.stack([error.clips for error in errors]),
        errors=np.stack(
            [
                np.stack([error.int8 for error in errors]),
                np.stack([error.int4 for error in errors]),
            ]
        ),
    )
