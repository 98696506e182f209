"""The error of every plane at every width, and the clip that makes it least."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from kvreuse.kv.codec.codec import LayerTransform
from kvreuse.kv.codec.planes import INT4, INT8, PlaneCodec
from kvreuse.ops.batch import Float32Array
from kvreuse.ops.reference.transform import hadamard
from kvreuse.shape import KINDS, Kind, ModelShape
from kvreuse.study.quality.attention import Probe
from kvreuse.study.quality.capture import LayerRows

CLIPS = (1.0, 0.96, 0.92, 0.88, 0.84)
"""Shares of a row's range that are tried for int4; int8 keeps all of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerErrors:
    """Of one layer, float32[2, kv_heads] each, keys first: what int8 and int4 in that plane alone
    add to the residual stream (root mean square, relative), and the clip of int4."""

    int8: Float32Array
    int4: Float32Array
    clips: Float32Array


def layer_errors(
    shape: ModelShape,
    layer: int,
    windows: Sequence[LayerRows],
    behind: Float32Array,
    transform: LayerTransform,
) -> LayerErrors:
    """Try every plane of a layer at every width, on the rows of some windows."""
    rows, behind = stored_form(shape, windows, behind, transform)
    planes = 2, shape.num_kv_heads
    int8, int4 = np.zeros(planes, dtype=np.float32), np.zeros(planes, dtype=np.float32)
    clips = np.ones(planes, dtype=np.float32)
    for head in range(shape.num_kv_heads):
        probes = [Probe.of(shape, layer, window, head, behind) for window in rows]
        for i, kind in enumerate(KINDS):
            int8[i, head] = plane_error(probes, kind, INT8, 1.0)
            tried = [plane_error(probes, kind, INT4, clip) for clip in CLIPS]
            int4[i, head], clips[i, head] = min(tried), CLIPS[int(np.argmin(tried))]
    return LayerErrors(int8, int4, clips)


def stored_form(
    shape: ModelShape,
    windows: Sequence[LayerRows],
    behind: Float32Array,
    transform: LayerTransform,
) -> tuple[list[LayerRows], Float32Array]:
    """The rows as pages store them and as queries meet them, and the weights behind such values.

    Scores then differ by one number a query, which no softmax knows; values and what follows them
    are rotated together.
    """
    rotation = hadamard(np.eye(shape.head_dim, dtype=np.float32))
    if transform.hadamard_values:
        behind = (rotation @ behind.reshape(-1, *rotation.shape[:1], behind.shape[1])).reshape(
            behind.shape
        )
    return [_stored(window, transform, rotation) for window in windows], behind


def _stored(rows: LayerRows, transform: LayerTransform, rotation: Float32Array) -> LayerRows:
    queries, keys, values = rows.queries, rows.keys, rows.values
    if transform.constant is not None:
        keys = keys - transform.constant
    if transform.scale is not None:
        group = queries.shape[1] // keys.shape[1]
        keys = keys / transform.scale
        queries = queries * np.repeat(transform.scale, group, axis=0)
    if transform.hadamard_keys:
        keys, queries = keys @ rotation, queries @ rotation
    if transform.hadamard_values:
        values = values @ rotation
    return dataclasses.replace(rows, queries=queries, keys=keys, values=values)


def plane_error(probes: Sequence[Probe], kind: Kind, plane: PlaneCodec, clip: float) -> float:
    """Root mean square of the error where one head's keys, or values, are in ``plane``."""
    errors = []
    for probe in probes:
        exact = probe.keys if kind == "key" else probe.values
        stored = plane.unpack(plane.pack(exact, kind, clip), exact.shape[1], kind)
        errors.append(probe.with_keys(stored) if kind == "key" else probe.with_values(stored))
    return float(np.sqrt(np.mean(errors)))
