"""Names of a model's tensors in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping

from kvreuse.model.tensors import Role, Weight

NAMES: Mapping[Role, str] = {
    Role.EMBEDDING: "token_embd.weight",
    Role.OUTPUT_NORM: "output_norm.weight",
    Role.LOGITS: "output.weight",
    Role.ROPE_FACTORS: "rope_freqs.weight",
    Role.ATTENTION_NORM: "blk.{layer}.attn_norm.weight",
    Role.QUERY: "blk.{layer}.attn_q.weight",
    Role.KEY: "blk.{layer}.attn_k.weight",
    Role.VALUE: "blk.{layer}.attn_v.weight",
    Role.ATTENTION_OUTPUT: "blk.{layer}.attn_output.weight",
    Role.FFN_NORM: "blk.{layer}.ffn_norm.weight",
    Role.GATE: "blk.{layer}.ffn_gate.weight",
    Role.UP: "blk.{layer}.ffn_up.weight",
    Role.DOWN: "blk.{layer}.ffn_down.weight",
    Role.QUERY_BIAS: "blk.{layer}.attn_q.bias",
    Role.KEY_BIAS: "blk.{layer}.attn_k.bias",
    Role.VALUE_BIAS: "blk.{layer}.attn_v.bias",
    Role.QUERY_NORM: "blk.{layer}.attn_q_norm.weight",
    Role.KEY_NORM: "blk.{layer}.attn_k_norm.weight",
    Role.POST_ATTENTION_NORM: "blk.{layer}.post_attention_norm.weight",
    Role.POST_FFN_NORM: "blk.{layer}.post_ffw_norm.weight",
}


def tensor_name(weight: Weight) -> str:
    """The name of a tensor in the file."""
    return NAMES[weight.role].format(layer=weight.layer)
