"""Families with recurrent layers: a state of fixed size in place of keys and values.

Sizes of the states are those of the families' classes in the ``transformers`` package. Of a
convolution the last ``kernel - 1`` inputs are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kvreuse.plan.families import Family, Layers, head_dim, kv_heads, num_layers
from kvreuse.plan.fields import Fields
from kvreuse.plan.windows import window_of_type
from kvreuse.shape import LayerShape, attention


def mamba1(fields: Fields, prefix: str = "") -> LayerShape:
    """A selective state space of the first kind (Gu and Dao, 2023)."""
    hidden = fields.count("hidden_size")
    inner = fields.optional("intermediate_size") if not prefix else None
    inner = inner or hidden * fields.count(f"{prefix}expand", "expand", default=2)
    state = fields.count(f"{prefix}d_state", "state_size", default=16)
    kernel = fields.count(f"{prefix}d_conv", "conv_kernel", default=4)
    return LayerShape(conv=inner * (kernel - 1), state=inner * state)


def mamba2(fields: Fields) -> LayerShape:
    """A state space of the second kind (Dao and Gu, 2024): a matrix a head."""
    heads = fields.count("mamba_n_heads", "mamba_num_heads", "num_heads")
    dim = fields.count("mamba_d_head", "mamba_head_dim", "head_dim")
    state = fields.count("mamba_d_state", "ssm_state_size", "state_size")
    groups = fields.count("mamba_n_groups", "n_groups", default=1)
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    width = heads * dim + 2 * groups * state
    return LayerShape(conv=width * (kernel - 1), state=heads * dim * state)


def delta_net(fields: Fields) -> LayerShape:
    """A gated delta rule (Yang et al., 2024): a matrix of key by value channels a value head."""
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    heads, dim = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim", default=4)
    return LayerShape(
        conv=(2 * keys + heads * dim) * (kernel - 1),
        state=heads * dim * fields.count("linear_key_head_dim"),
    )


def pure(layer: str) -> Family:
    """All layers recurrent, of the kind ``layer``."""
    kinds = {"mamba1": mamba1, "mamba2": mamba2}
    return lambda fields: (kinds[layer](fields),) * num_layers(fields)


def jamba(fields: Fields) -> Layers:
    """Jamba: attention on one layer of each period."""
    period = fields.count("attn_layer_period", default=8)
    offset = fields.count("attn_layer_offset", default=4, least=0)
    if offset >= period:
        fields.fail(f"'attn_layer_offset' is {offset}, but the period is {period}")
    attend, recur = attention(kv_heads(fields), head_dim(fields)), mamba1(fields, "mamba_")
    return tuple(attend if i % period == offset else recur for i in range(num_layers(fields)))


def bamba(fields: Fields) -> Layers:
    """Bamba, Granite 4: attention on some layers, the rest of the second kind."""
    layers = num_layers(fields)
    types = fields.texts("layer_types", layers)
    if types is None:
        listed = fields.values.get("attn_layer_indices") or []
        if not isinstance(listed, list):
            fields.fail("'attn_layer_indices' must be a list of layers")
        types = ["attention" if i in listed else "mamba" for i in range(layers)]
    attend, recur = attention(kv_heads(fields), head_dim(fields)), mamba2(fields)
    return _by_type(fields, types, attend, {"mamba": recur})


def nemotron_h(fields: Fields) -> Layers:
    """Nemotron-H: a letter a layer, M recurrent, * attention, - and E neither."""
    layers = num_layers(fields)
    pattern = fields.values.get("hybrid_override_pattern")
    if isinstance(pattern, list):
        pattern = "".join(map(str, pattern))
    if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - set("M*-E"):
        fields.fail(f"'hybrid_override_pattern' must be {layers} letters M, *, - or E")
    attend = attention(kv_heads(fields), head_dim(fields))
    kinds = {"M": mamba2(fields), "*": attend, "-": LayerShape(), "E": LayerShape()}
    return tuple(kinds[letter] for letter in pattern)


def qwen3_next(fields: Fields) -> Layers:
    """Qwen3-Next and later: every fourth layer attends, the rest are gated delta nets."""
    layers = num_layers(fields)
    every = fields.count("full_attention_interval", default=4)
    types = fields.texts("layer_types", layers) or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)
    ]
    attend = attention(kv_heads(fields), head_dim(fields))
    return _by_type(fields, types, attend, {"linear_attention": delta_net(fields)})


def lfm2(fields: Fields) -> Layers:
    """LFM2: short convolutions, and attention on some layers."""
    layers = num_layers(fields)
    types = fields.texts("layer_types", layers)
    if types is None:
        listed = fields.values.get("full_attn_idxs")
        if not isinstance(listed, list):
            fields.fail("'layer_types' is missing")
        types = ["full_attention" if i in listed else "conv" for i in range(layers)]
    inputs = fields.count("hidden_size") * (fields.count("conv_L_cache", default=3) - 1)
    attend = attention(kv_heads(fields), head_dim(fields))
    return _by_type(fields, types, attend, {"conv": LayerShape(conv=inputs)})


def falcon_h1(fields: Fields) -> Layers:
    """Falcon-H1: every layer has both, side by side."""
    attend, recur = attention(kv_heads(fields), head_dim(fields)), mamba2(fields)
    both = dataclasses.replace(attend, conv=recur.conv, state=recur.state)
    return (both,) * num_layers(fields)


def recurrent_gemma(fields: Fields) -> Layers:
    """RecurrentGemma (De et al., 2024): two recurrent layers, one of attention with a window."""
    cycle = fields.values.get("block_types", fields.values.get("_block_types"))
    known = {"recurrent", "attention"}
    if not isinstance(cycle, list) or not cycle or set(map(str, cycle)) - known:
        fields.fail("'block_types' must be a list of 'recurrent' and 'attention'")
    width = fields.optional("lru_width") or fields.count("hidden_size")
    inputs = width * (fields.count("conv1d_width", default=4) - 1)
    heads, dim = fields.count("num_key_value_heads", default=1), head_dim(fields)
    kinds = {
        "attention": attention(heads, dim, fields.count("attention_window_size", default=2048)),
        "recurrent": LayerShape(conv=inputs, state=width),
    }
    return tuple(kinds[str(cycle[i % len(cycle)])] for i in range(num_layers(fields)))


def _by_type(
    fields: Fields, types: list[str], attend: LayerShape, others: Mapping[str, LayerShape]
) -> Layers:
    """``others`` by name; every other type must be one of attention."""
    return tuple(
        others[kind]
        if kind in others
        else dataclasses.replace(attend, window=window_of_type(fields, kind))
        for kind in types
    )


HYBRIDS: Mapping[str, Family] = {
    **dict.fromkeys(("mamba", "falcon_mamba"), pure("mamba1")),
    "mamba2": pure("mamba2"),
    "jamba": jamba,
    **dict.fromkeys(("bamba", "granitemoehybrid"), bamba),
    "nemotron_h": nemotron_h,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), qwen3_next),
    **dict.fromkeys(("lfm2", "lfm2_moe"), lfm2),
    "falcon_h1": falcon_h1,
    "recurrent_gemma": recurrent_gemma,
}
"""By ``model_type``."""
