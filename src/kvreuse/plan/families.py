"""Families of ordinary attention: from the fields of a config.json to what each layer keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvreuse.plan import windows
from kvreuse.plan.fields import MOST_LAYERS, Fields
from kvreuse.shape import LayerShape, attention

Layers = tuple[LayerShape, ...]
Family = Callable[[Fields], Layers]

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")


def num_layers(fields: Fields) -> int:
    """How many layers there are."""
    return fields.count(*LAYERS, most=MOST_LAYERS)


def head_dim(fields: Fields) -> int:
    """Channels of a head: said outright, or the hidden size split among the heads."""
    said = fields.optional(*HEAD_DIM)
    if said is not None:
        return said
    hidden, heads = fields.count(*HIDDEN), fields.count(*HEADS)
    if hidden % heads:
        fields.fail(
            f"the hidden size {hidden} does not split among {heads} heads, and there is no head_dim"
        )
    return hidden // heads


def kv_heads(fields: Fields) -> int:
    """Heads of keys and values: as many as query heads where nothing is said."""
    heads = fields.count(*HEADS)
    found = fields.count(*KV_HEADS, default=heads)
    if heads % found:
        fields.fail(f"{heads} heads cannot share {found} heads of keys and values evenly")
    return found


def dense(rule: windows.Rule = windows.no_windows) -> Family:
    """All layers with the same heads; ``rule`` says which have a window."""

    def read(fields: Fields) -> Layers:
        heads, dim = kv_heads(fields), head_dim(fields)
        return tuple(attention(heads, dim, w) for w in rule(fields, num_layers(fields)))

    return read


def per_layer(*names: str) -> Family:
    """A list with the KV heads of each layer, under one of ``names``; 0 where a layer has none."""

    def read(fields: Fields) -> Layers:
        layers, dim = num_layers(fields), head_dim(fields)
        for name in names:
            if (heads := fields.counts(name, layers, least=0)) is not None:
                return tuple(attention(count, dim) if count else LayerShape() for count in heads)
        return fields.fail(f"'{names[0]}' must be a list with the heads of each layer")

    return read


def falcon(fields: Fields) -> Layers:
    """Falcon: one KV head with ``multi_query``, unless the decoder is the new one, with groups."""
    layers, heads, dim = num_layers(fields), fields.count(*HEADS), head_dim(fields)
    if fields.flag("new_decoder_architecture", "n_head_kv" in fields):
        found = kv_heads(fields)
    else:
        found = 1 if fields.flag("multi_query", True) else heads
    return (attention(found, dim),) * layers


def multi_query(fields: Fields) -> Layers:
    """GPT-BigCode, ChatGLM: a switch says whether heads share keys and values."""
    layers, heads, dim = num_layers(fields), fields.count(*HEADS), head_dim(fields)
    if fields.flag("multi_query", True) and fields.flag("multi_query_attention", True):
        found = fields.count("multi_query_group_num", default=1)
    else:
        found = heads
    return (attention(found, dim),) * layers


def grouped_inside(fields: Fields) -> Layers:
    """MPT, DBRX: the heads of keys and values lie in ``attn_config``."""
    layers, heads, dim = num_layers(fields), fields.count(*HEADS), head_dim(fields)
    inner = fields.inner("attn_config")
    found = inner.count("kv_n_heads", default=heads) if inner else heads
    return (attention(found, dim),) * layers


def latent(fields: Fields) -> Layers:
    """Multi-head latent attention (DeepSeek-AI, 2024): one row a token, for all heads.

    It holds the compressed keys and values, and the rotated part of the key.
    """
    width = fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim")
    return (LayerShape(kv_heads=1, key_dim=width),) * num_layers(fields)


def gemma3n(fields: Fields) -> Layers:
    """Gemma 3n: the last ``num_kv_shared_layers`` read keys and values of earlier layers."""
    return _without_last(fields, dense(windows.all_but_every(5))(fields))


def _without_last(fields: Fields, layers: Sequence[LayerShape]) -> Layers:
    """The last ``num_kv_shared_layers`` keep nothing of their own."""
    shared = fields.count("num_kv_shared_layers", default=0, least=0, most=MOST_LAYERS)
    if shared >= len(layers):
        fields.fail(f"'num_kv_shared_layers' is {shared}, but there are {len(layers)} layers")
    return (*layers[: len(layers) - shared], *[LayerShape()] * shared)


def gemma4(fields: Fields) -> Layers:
    """Gemma 4: layers that see everything have wider heads, and may have fewer of them."""
    layers, heads = num_layers(fields), kv_heads(fields)
    types = fields.texts("layer_types", layers)
    if types is None:
        fields.fail("'layer_types' is missing")
    wide = fields.count("global_head_dim", default=512)
    few = fields.count("num_global_key_value_heads", default=heads)
    full = attention(few if fields.flag("attention_k_eq_v", False) else heads, wide)
    limits = [windows.window_of_type(fields, kind) for kind in types]
    found = [full if w is None else attention(heads, head_dim(fields), w) for w in limits]
    return _without_last(fields, found)


_PLAIN = (
    *("llama", "smollm3", "granite", "granitemoe", "olmo", "olmo2", "olmoe", "stablelm", "phi"),
    *("internlm2", "internlm3", "baichuan", "gemma", "glm", "glm4", "glm4_moe", "nemotron"),
    *("exaone", "seed_oss", "arcee", "apertus", "ernie4_5", "ernie4_5_moe", "cohere", "gpt2"),
    *("gpt_neox", "gptj", "bloom", "opt", "xglm", "minicpm", "deepseek", "persimmon", "aquila"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "helium", "bitnet", "dots1", "minimax_m2"),
)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(_PLAIN, dense()),
    **dict.fromkeys(("mistral", "mixtral", "phi3", "phimoe", "starcoder2"), dense(windows.on_all)),
    **dict.fromkeys(("ministral",), dense(windows.on_all)),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), dense(windows.above)),
    **dict.fromkeys(("gemma2", "gpt_oss"), dense(windows.all_but_every(2))),
    **dict.fromkeys(("cohere2", "exaone4", "olmo3"), dense(windows.all_but_every(4))),
    "gemma3_text": dense(windows.all_but_every(6)),
    "llama4_text": dense(windows.chunks),
    "gemma3n_text": gemma3n,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), gemma4),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), falcon),
    **dict.fromkeys(("gpt_bigcode", "chatglm"), multi_query),
    **dict.fromkeys(("mpt", "dbrx"), grouped_inside),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "minicpm3"), latent),
    "glm4_moe_lite": latent,
    "openelm": per_layer("num_kv_heads"),
    "deci": per_layer("num_key_value_heads_per_layer"),
}
"""By ``model_type``."""
