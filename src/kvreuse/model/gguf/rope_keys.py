"""The rotary embedding that a GGUF file describes, by keys or by a tensor of factors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from kvreuse.errors import shown
from kvreuse.model.gguf.keys import Keys
from kvreuse.model.gguf.names import tensor_name
from kvreuse.model.tensors import Role, Weight
from kvreuse.ops.tensor_types import TensorType
from kvreuse.shape import RopePairs, RopeScaling, RopeSpec

FACTORS = tensor_name(Weight(Role.ROPE_FACTORS))
DEFAULT_BASE = 10000.0

# Keys of variants of YaRN, and the values with which it is as in the paper.
YARN_NEUTRAL = {
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
# Keys that scale, and the values with which they do not.
UNSCALED = {
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scale_linear": 1.0,
}


def read_rope(
    keys: Keys, head_dim: int, pairs: RopePairs, default_base: float = DEFAULT_BASE
) -> RopeSpec:
    """The embedding of layers without a window, scaling included. Raises ``ModelFileError``.

    A file may scale by keys or by the tensor ``rope_freqs.weight`` (as Llama 3's converters do),
    not by both. A factor without a type means linear scaling, and so does the older key
    ``rope.scale_linear``.
    """
    dims = keys.count("rope.dimension_count", head_dim, at_most=head_dim)
    if dims % 2:
        keys.fail(f"'{keys.name('rope.dimension_count')}' is {dims}; channels rotate in pairs")
    plain = RopeSpec(pairs, keys.real("rope.freq_base", default_base, above=1.0), dims)
    scaled = _scaled(keys, plain)
    if FACTORS not in keys.file.tensors:
        return scaled
    if scaled.scaling != "none":
        keys.fail(f"'{FACTORS}' and '{keys.name('rope.scaling.type')}' both scale; use one of them")
    return dataclasses.replace(plain, scaling="factors", factors=_factors(keys, dims // 2))


def _scaled(keys: Keys, plain: RopeSpec) -> RopeSpec:
    kind = keys.raw("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in REGIMES:
        name, known = keys.name("rope.scaling.type"), ", ".join(REGIMES)
        keys.fail(f"'{name}' is {shown(kind)}, which is not supported (supported: {known})")
    return REGIMES[kind](keys, plain)


def _none(keys: Keys, plain: RopeSpec) -> RopeSpec:
    keys.refuse(UNSCALED)
    return plain


def _linear(keys: Keys, plain: RopeSpec) -> RopeSpec:
    keys.refuse({"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0})
    older = "rope.scale_linear" in keys and "rope.scaling.factor" not in keys
    factor = _factor(keys, "rope.scale_linear" if older else "rope.scaling.factor", 1.0)
    if factor == 1.0:
        return plain
    return _with(plain, "linear", factor=factor)


def _llama3(keys: Keys, plain: RopeSpec) -> RopeSpec:
    low = keys.real("rope.scaling.low_freq_factor")
    high = keys.real("rope.scaling.high_freq_factor")
    if low >= high:
        key = keys.name("rope.scaling.low_freq_factor")
        keys.fail(f"'{key}' is {low}; it must be below the high_freq_factor {high}")
    return _with(
        plain,
        "llama3",
        factor=_factor(keys, "rope.scaling.factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=keys.count("rope.scaling.original_context_length"),
    )


def _yarn(keys: Keys, plain: RopeSpec) -> RopeSpec:
    keys.refuse(YARN_NEUTRAL)
    factor = _factor(keys, "rope.scaling.factor")
    fast = keys.real("rope.scaling.yarn_beta_fast", 32.0)
    slow = keys.real("rope.scaling.yarn_beta_slow", 1.0)
    if slow >= fast:
        key = keys.name("rope.scaling.yarn_beta_slow")
        keys.fail(f"'{key}' is {slow}; it must be below the yarn_beta_fast {fast}")
    # The file's number comes on top of the paper's own (section 3.4).
    attn_factor = keys.real("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * math.log(factor))
    return _with(
        plain,
        "yarn",
        factor=factor,
        original_context=keys.count(
            "rope.scaling.original_context_length", keys.count("context_length")
        ),
        beta_fast=fast,
        beta_slow=slow,
        attn_factor=attn_factor,
    )


REGIMES: Mapping[str, Callable[[Keys, RopeSpec], RopeSpec]] = {
    "none": _none,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""What ``rope.scaling.type`` may say."""


def _with(plain: RopeSpec, scaling: RopeScaling, **numbers: float) -> RopeSpec:
    return dataclasses.replace(
        plain,
        scaling=scaling,
        scaling_params=tuple((name, float(number)) for name, number in numbers.items()),
    )


def _factor(keys: Keys, suffix: str, default: float | None = None) -> float:
    """By how much the context is longer than the trained one: at least 1."""
    factor = keys.real(suffix, default)
    if factor < 1.0:
        keys.fail(f"'{keys.name(suffix)}' is {factor}; it must be at least 1")
    return factor


def _factors(keys: Keys, pairs: int) -> tuple[float, ...]:
    """The divisors in ``rope_freqs.weight``, one for each pair of channels."""
    tensor = keys.file.tensors[FACTORS]
    if tensor.shape != (pairs,) or tensor.type != TensorType.F32:
        shape = " x ".join(map(str, tensor.shape))
        keys.fail(f"the tensor '{FACTORS}' is {tensor.type.name} {shape}, not F32 {pairs}")
    factors = keys.file.data(FACTORS).view(np.float32)
    for factor in factors.tolist():
        if not 0.0 < factor < math.inf:
            keys.fail(f"the tensor {shown(FACTORS)} holds {factor}; it must be above 0 and finite")
    return tuple(factors.tolist())
