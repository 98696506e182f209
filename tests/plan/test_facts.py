"""The known models: bytes per token derived by hand, and the sizes that papers and cards give."""

from __future__ import annotations

import pytest

from kvreuse.ops.native import NativeBackend
from kvreuse.plan.facts import facts, find
from kvreuse.plan.memory import KVPlan
from kvreuse.plan.source import find_model

BACKEND = NativeBackend(threads=1)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# layers x KV heads x channels x (key and value) x 2 bytes, unless the model says otherwise
BY_HAND = {
    "llama-2-7b": 32 * 32 * 128 * 2 * 2,
    "llama-3-8b": 32 * 8 * 128 * 2 * 2,
    "llama-3-70b": 80 * 8 * 128 * 2 * 2,
    "llama-3.1-8b": 32 * 8 * 128 * 2 * 2,
    "llama-3.2-1b": 16 * 8 * 64 * 2 * 2,
    "llama-4-scout": 48 * 8 * 128 * 2 * 2,
    "smollm2-135m": 30 * 3 * 64 * 2 * 2,
    "mistral-7b-v0.1": 32 * 8 * 128 * 2 * 2,
    "mixtral-8x7b": 32 * 8 * 128 * 2 * 2,
    "qwen2.5-0.5b": 24 * 2 * 64 * 2 * 2,
    "qwen2.5-7b": 28 * 4 * 128 * 2 * 2,
    "qwen2.5-72b": 80 * 8 * 128 * 2 * 2,
    "qwen3-8b": 36 * 8 * 128 * 2 * 2,
    "qwen3-30b-a3b": 48 * 4 * 128 * 2 * 2,
    "qwen3-next-80b-a3b": 12 * 2 * 256 * 2 * 2,  # a quarter of 48 layers attends
    "gemma-2-9b": 42 * 8 * 256 * 2 * 2,
    "gemma-3-270m": 18 * 1 * 256 * 2 * 2,
    "gemma-3-1b": 26 * 1 * 256 * 2 * 2,
    "gemma-3-4b": 34 * 4 * 256 * 2 * 2,
    "gemma-3-27b": 62 * 16 * 128 * 2 * 2,
    "gemma-3n-e4b": 20 * 2 * 256 * 2 * 2,  # 15 of 35 layers read those of others
    "phi-3-mini": 32 * 32 * 96 * 2 * 2,
    "phi-4": 40 * 10 * 128 * 2 * 2,
    "falcon-7b": 32 * 1 * 64 * 2 * 2,
    "falcon-40b": 60 * 8 * 64 * 2 * 2,
    "deepseek-v2-lite": 27 * (512 + 64) * 2,  # one row, key and value at once
    "deepseek-v3": 61 * (512 + 64) * 2,
    "gpt-oss-20b": 24 * 8 * 64 * 2 * 2,
    "gpt-oss-120b": 36 * 8 * 64 * 2 * 2,
    "jamba-v0.1": 4 * 8 * 128 * 2 * 2,  # one layer of eight attends
    "mamba-2.8b": 0,
    "starcoder": 40 * 1 * 128 * 2 * 2,
    "gpt2": 12 * 12 * 64 * 2 * 2,
}


def kv(name: str) -> KVPlan:
    return KVPlan(find_model(name, BACKEND).shape)


@pytest.mark.parametrize("name", list(facts()))
def test_bytes_per_token(name: str) -> None:
    assert kv(name).token_bytes == BY_HAND[name]
    assert facts()[name].weight_bytes > 50 * MIB


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-3-8b", 128),
        ("llama-3-70b", 320),
        ("qwen2.5-7b", 56),
        ("qwen3-30b-a3b", 96),
        ("falcon-7b", 8),
        ("deepseek-v3", 68.625),
        ("deepseek-v2-lite", 30.375),
        ("phi-3-mini", 384),
    ],
)
def test_published_figures(name: str, kib: float) -> None:
    assert kv(name).token_bytes == kib * KIB


@pytest.mark.parametrize(
    ("tokens", "mib"), [(512, 256), (1024, 512), (2048, 1024), (4096, 2048), (8192, 4096)]
)
def test_the_textbook_case(tokens: int, mib: int) -> None:
    plan = kv("llama-2-7b")
    assert plan.needed(tokens) == plan.reserved(tokens) == mib * MIB
    assert plan.needed(tokens, 32) == plan.reserved(tokens, 32) == 32 * mib * MIB


@pytest.mark.parametrize(
    ("name", "tokens", "needed", "naive"),
    [
        ("gemma-3-1b", 32_768, 139 * MIB, 832 * MIB),
        ("gemma-3-4b", 32_768, 756 * MIB, 4352 * MIB),
        ("gpt-oss-20b", 8_192, 195 * MIB, 384 * MIB),
        ("mistral-7b-v0.1", 32_768, 512 * MIB, 4 * GIB),
        ("llama-4-scout", 131_072, int(7.125 * GIB), 24 * GIB),
        ("phi-3-mini", 4_096, 2047 * 384 * KIB, 1536 * MIB),
        ("gemma-3n-e4b", 32_768, (4 * 32_768 + 16 * 512) * 2 * KIB, 1280 * MIB),
    ],
)
def test_windows_need_less_than_is_reserved(
    name: str, tokens: int, needed: int, naive: int
) -> None:
    plan = kv(name)
    assert (plan.needed(tokens), plan.reserved(tokens)) == (needed, naive)


def test_states_have_a_fixed_size() -> None:
    mamba = kv("mamba-2.8b")  # 64 layers of 5,120 channels: 3 inputs in bf16, 16 sums in fp32
    assert mamba.needed(1) == mamba.needed(1 << 20) == 64 * 5120 * (3 * 2 + 16 * 4)
    jamba = kv("jamba-v0.1")
    state = 28 * 8192 * (3 * 2 + 16 * 4)
    assert jamba.needed(1000) == state + 1000 * 16 * KIB
    hybrid = kv("qwen3-next-80b-a3b")  # 32 value heads keep 128 x 128; 8,192 channels are convolved
    assert hybrid.needed(10) == 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4) + 10 * 24 * KIB


def test_a_model_is_found_by_its_repository() -> None:
    assert find("meta-llama/Meta-Llama-3-8B") is find("Llama-3-8B") is facts()["llama-3-8b"]
    assert find("llama-3") is None
