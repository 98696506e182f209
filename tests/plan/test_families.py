"""From a config.json to what each layer keeps: the shapes that one formula gets wrong."""

from __future__ import annotations

from typing import Any

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.plan.config_json import shape_of, text_fields
from kvreuse.plan.memory import KVPlan
from kvreuse.shape import CacheShape, LayerShape, attention

BASE: dict[str, Any] = {"num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8}


def read(model_type: str, **fields: Any) -> CacheShape:
    return shape_of(text_fields({**BASE, "model_type": model_type, **fields}, "config.json"))


def windows(model_type: str, **fields: Any) -> list[int | None]:
    return [layer.window for layer in read(model_type, **fields).layers]


def heads(model_type: str, **fields: Any) -> set[tuple[int, int]]:
    return {(layer.kv_heads, layer.key_dim) for layer in read(model_type, **fields).layers}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (8, 32)),  # missing: every head has its own
        ({"num_key_value_heads": 2}, (2, 32)),
        ({"num_key_value_heads": 1}, (1, 32)),
        ({"num_key_value_heads": None}, (8, 32)),
        ({"num_key_value_heads": 2, "head_dim": 128}, (2, 128)),
        ({"num_key_value_heads": 2, "head_dim": None}, (2, 32)),
        ({"hidden_size": 250, "head_dim": 64}, (8, 64)),
        ({"num_key_value_heads": 4.0}, (4, 32)),
    ],
)
def test_heads(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    assert heads("llama", **fields) == {expected}


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("falcon", {}, (1, 32)),
        ("falcon", {"multi_query": False}, (8, 32)),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, (2, 32)),
        ("falcon", {"new_decoder_architecture": True}, (8, 32)),
        ("falcon", {"num_kv_heads": 8, "multi_query": True}, (1, 32)),
        ("RefinedWeb", {"n_head_kv": 4}, (4, 32)),
        ("gpt_bigcode", {"multi_query": True}, (1, 32)),
        ("gpt_bigcode", {"multi_query": False}, (8, 32)),
        ("chatglm", {"multi_query_group_num": 2, "kv_channels": 64}, (2, 64)),
        ("mpt", {}, (8, 32)),
        ("dbrx", {"attn_config": {"kv_n_heads": 2}}, (2, 32)),
    ],
)
def test_heads_by_switches(
    model_type: str, fields: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert heads(model_type, **fields) == {expected}


def test_old_spellings() -> None:
    config = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 99}
    found = shape_of(text_fields(config, "config.json"))
    assert found == CacheShape("gpt2", (attention(4, 16),) * 3, 99)


def test_heads_that_differ_by_layer() -> None:
    counts = [1, 1, 2, 2, 4, 4, 8, 0]
    found = read("deci", num_key_value_heads_per_layer=counts)
    assert [layer.kv_heads for layer in found.layers] == counts
    assert found.layers[-1] == LayerShape()
    assert [x.kv_heads for x in read("openelm", num_kv_heads=counts, head_dim=64).layers] == counts


W = 100


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {"sliding_window": W}, [None] * 8),
        ("mistral", {"sliding_window": W}, [W] * 8),
        ("mistral", {"sliding_window": None}, [None] * 8),
        ("mistral", {}, [None] * 8),
        ("qwen2", {"sliding_window": W, "use_sliding_window": False}, [None] * 8),
        ("qwen2", {"sliding_window": W}, [None] * 8),
        (
            "qwen2",
            {"sliding_window": W, "use_sliding_window": True, "max_window_layers": 6},
            [None] * 6 + [W] * 2,
        ),
        ("gemma2", {"sliding_window": W}, [W, None] * 4),
        ("gpt_oss", {"sliding_window": W}, [W, None] * 4),
        ("gemma3_text", {"sliding_window": W}, [W] * 5 + [None] + [W] * 2),
        ("gemma3_text", {"sliding_window": W, "sliding_window_pattern": 4}, [W, W, W, None] * 2),
        ("gemma3_text", {"sliding_window": W, "_sliding_window_pattern": 4}, [W, W, W, None] * 2),
        ("cohere2", {"sliding_window": W}, [W, W, W, None] * 2),
        ("exaone4", {"sliding_window": W, "sliding_window_pattern": "LG"}, [W, None] * 4),
        ("exaone4", {"sliding_window": None}, [None] * 8),
        (
            "gemma3_text",
            {"sliding_window": W, "layer_types": ["full_attention", "sliding_attention"] * 4},
            [None, W] * 4,
        ),
        (
            "qwen3",
            {"sliding_window": W, "use_sliding_window": False, "layer_types": ["attention"] * 8},
            [None] * 8,
        ),
    ],
)
def test_windows(model_type: str, fields: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(model_type, **fields) == expected


def test_chunks() -> None:
    fields = {"attention_chunk_size": W, "head_dim": 32, "num_key_value_heads": 2}
    assert windows("llama4_text", **fields) == [W, W, W, None] * 2
    assert windows("llama4_text", **fields, no_rope_layers=[]) == [W, W, W, None] * 2
    assert windows("llama4_text", **fields, no_rope_layers=[1, 0] * 4) == [W, None] * 4
    assert windows("llama4_text", **{**fields, "attention_chunk_size": None}) == [None] * 8
    kinds = ["chunked_attention", "full_attention"] * 4
    assert windows("llama4_text", **fields, layer_types=kinds) == [W, None] * 4


def test_latent_attention_is_one_row_for_all_heads() -> None:
    found = read("deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64, num_key_value_heads=8)
    assert found.layers == (LayerShape(kv_heads=1, key_dim=576),) * 8
    assert KVPlan(found).token_bytes == 8 * 576 * 2


def test_shared_layers_keep_nothing() -> None:
    found = read("gemma3n_text", sliding_window=W, num_key_value_heads=2, num_kv_shared_layers=3)
    assert [bool(layer.rows) for layer in found.layers] == [True] * 5 + [False] * 3
    assert [layer.window for layer in found.layers[:5]] == [W, W, W, W, None]


def test_wider_heads_on_some_layers() -> None:
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
    found = read(
        "gemma4_text",
        **{"layer_types": kinds, "sliding_window": W, "head_dim": 64, "global_head_dim": 128},
        **{"num_key_value_heads": 4, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    )
    assert found.layers[:4] == (*[attention(4, 64, W)] * 3, attention(1, 128))


def test_nested_configurations_leave_out_their_defaults() -> None:
    vision = {"vision_config": {"num_hidden_layers": 99}}
    config = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}, **vision}
    found = shape_of(text_fields(config, "config.json"))
    assert found.layers == (*[attention(4, 256, 4096)] * 5, attention(4, 256))
    assert found.context_length == 131_072
    llava = {"model_type": "llava", "text_config": {"model_type": "llama"}, **vision}
    assert shape_of(text_fields(llava, "x")).layers == (attention(32, 128),) * 32
    inner = {"model_type": "mistral", **BASE, "sliding_window": None, "num_key_value_heads": 2}
    mistral = {"model_type": "mistral3", "text_config": inner}
    assert shape_of(text_fields(mistral, "x")).layers == (attention(2, 32),) * 8
    omni = {
        "model_type": "omni",
        "thinker_config": {"text_config": {"model_type": "qwen2", **BASE}},
    }
    assert shape_of(text_fields(omni, "x")).layers == (attention(8, 32),) * 8


def test_hybrids() -> None:
    mamba = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2}
    recurrent = LayerShape(conv=(4 * 8 + 2 * 2 * 16) * 3, state=4 * 8 * 16)
    full = attention(8, 32)
    found = read("bamba", attn_layer_indices=[3], **mamba).layers
    assert found == (*[recurrent] * 3, full, *[recurrent] * 4)
    kinds = ["mamba", "attention"] * 4
    assert read("granitemoehybrid", layer_types=kinds, **mamba).layers == (recurrent, full) * 4
    both = read("falcon_h1", **mamba).layers[0]
    assert (both.kv_heads, both.key_dim, both.state) == (8, 32, recurrent.state)
    found = read("nemotron_h", hybrid_override_pattern="M-M*M-M*", **mamba).layers
    assert found == (recurrent, LayerShape(), recurrent, full) * 2
    found = read("lfm2", layer_types=["conv", "full_attention"] * 4, conv_L_cache=3).layers
    assert found == (LayerShape(conv=512), full) * 4
    cycle = ["recurrent", "recurrent", "attention"]
    griffin = read("recurrent_gemma", block_types=cycle, attention_window_size=W, lru_width=300)
    assert griffin.layers[:3] == (*[LayerShape(conv=900, state=300)] * 2, attention(1, 32, W))
    assert read("jamba", attn_layer_period=4, attn_layer_offset=1).layers[1:3] == (
        full,
        LayerShape(conv=512 * 3, state=512 * 16),
    )


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("llama", {"num_hidden_layers": None}, "'num_hidden_layers' or .* is missing"),
        ("llama", {"num_hidden_layers": "32"}, "must be a whole number, it is '32'"),
        ("llama", {"num_hidden_layers": True}, "must be a whole number, it is True"),
        ("llama", {"num_hidden_layers": -1}, "is -1; it must be from 1 to 10000"),
        ("llama", {"num_hidden_layers": 10**30}, "is a number of more than 20 digits; it must"),
        ("llama", {"num_attention_heads": 0}, "is 0; it must be from 1"),
        ("llama", {"num_attention_heads": float("nan")}, "must be a whole number, it is nan"),
        ("llama", {"num_attention_heads": 7}, "256 does not split among 7 heads"),
        ("llama", {"num_key_value_heads": 3}, "8 heads cannot share 3 heads"),
        ("llama", {"num_key_value_heads": 16}, "8 heads cannot share 16 heads"),
        ("llama", {"max_position_embeddings": -5}, "'max_position_embeddings' is -5"),
        ("mistral", {"sliding_window": 0}, "'sliding_window' is 0"),
        ("qwen2", {"use_sliding_window": "yes"}, "must be true or false, it is 'yes'"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "has 1 entries, but there are 8 layers"),
        ("gpt_oss", {"layer_types": "full"}, "'layer_types' must be a list of texts"),
        ("gpt_oss", {"layer_types": ["dance"] * 8}, "has a 'dance', which is unknown here"),
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 8}, "'sliding_window' is missing"),
        ("exaone4", {"sliding_window": 9, "sliding_window_pattern": "LX"}, "letters L and G"),
        ("deepseek_v3", {"qk_rope_head_dim": 64}, "'kv_lora_rank' is missing"),
        ("gemma3n_text", {"num_kv_shared_layers": 8}, "is 8, but there are 8 layers"),
        ("deci", {}, "'num_key_value_heads_per_layer' must be a list"),
        ("deci", {"num_key_value_heads_per_layer": [1, -1] * 4}, "is -1; it must be from 0"),
        ("jamba", {"attn_layer_offset": 9}, "is 9, but the period is 8"),
        ("nemotron_h", {"hybrid_override_pattern": "M"}, "must be 8 letters"),
        ("dbrx", {"attn_config": 5}, "'attn_config' must be an object, it is 5"),
        ("gemma4_text", {}, "'layer_types' is missing"),
        ("recurrent_gemma", {"block_types": []}, "'block_types' must be a list"),
        ("bamba", {"attn_layer_indices": 3}, "must be a list of layers"),
    ],
)
def test_what_is_wrong_is_named(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(model_type, **fields)


def test_an_unknown_architecture_lists_what_was_read() -> None:
    with pytest.raises(ModelFileError) as caught:
        read("starship", num_key_value_heads=4)
    for words in ("not known here", "model_type 'starship'", "num_hidden_layers 8", "heads 4"):
        assert words in str(caught.value)
    with pytest.raises(ModelFileError, match="read: 1 fields, none of them telling"):
        shape_of(text_fields({"a": 1}, "config.json"))
