"""Codecs to test with: those of the uniform kinds, and ``auto`` with everything in it."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import KVCodec, make_codec
from kvreuse.shape import ModelShape

REAL_CODECS = ("bf16", "auto")
"""Codecs worth a real model where a test is about something else: ``auto`` has planes of all."""

MIXTURES = 9
"""Pairs of a key's and a value's plane codec."""


def codec_for(shape: ModelShape, name: str, first: int = 0) -> KVCodec:
    """The codec ``name`` for a model. ``auto`` gets a calibration that has something of everything.

    Its heads go through all pairs of plane codecs, from the pair ``first`` on.
    """
    return make_codec(name, shape.layers, everything(shape, first) if name == "auto" else None)


def everything(shape: ModelShape, first: int = 0) -> Calibration:
    """Constants, scales, clips, both rotations and every width, none of them found by measuring."""
    rng = np.random.default_rng(first)
    layers, heads = shape.num_layers, shape.num_kv_heads
    channels = (layers, heads, shape.head_dim)
    pairs = (np.arange(layers * heads).reshape(layers, heads) + first) % MIXTURES
    return Calibration(
        model_digest="made for a test",
        constants=(rng.standard_normal(channels) / 4).astype(np.float32),
        scales=rng.uniform(0.8, 1.25, channels).astype(np.float32),
        clips=rng.uniform(0.9, 1, (layers, 2, heads)).astype(np.float32),
        widths=np.stack([pairs // 3, pairs % 3], axis=1).astype(np.uint8),
    )


def untransformed(shape: ModelShape, name: str) -> KVCodec:
    """The naive recipe: rows are quantised as they are."""
    naive = Calibration("none", hadamard_keys=False, hadamard_values=False)
    return make_codec(name, shape.layers, naive)
