"""EngineConfig: what it takes, and how it says no."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import kvreuse
from kvreuse.config import EngineConfig
from kvreuse.errors import ConfigError
from kvreuse.sizes import available_memory


def test_a_quarter_of_the_available_memory_by_default() -> None:
    assert EngineConfig("m").kv_cache_bytes() == pytest.approx(available_memory() / 4, rel=0.1)


@pytest.mark.parametrize("size", [3 << 20, "3MiB"])
def test_memory_in_bytes_or_words(size: int | str) -> None:
    assert EngineConfig("m", kv_cache_memory=size).kv_cache_bytes() == 3 << 20


def test_more_memory_than_there_is() -> None:
    with pytest.raises(ConfigError, match=r"asks for 4000 TiB, but .* are available"):
        EngineConfig("m", kv_cache_memory="4000TiB").kv_cache_bytes()


def test_the_context_is_the_models_or_shorter() -> None:
    assert EngineConfig("m").model_len(8192) == 8192
    assert EngineConfig("m", max_model_len=100).model_len(8192) == 100
    with pytest.raises(ConfigError, match=r"--max-model-len is 9000, but .* for 8192 tokens"):
        EngineConfig("m", max_model_len=9000).model_len(8192)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_seqs", 0, "--max-num-seqs must be an integer of at least 1, got 0"),
        ("max_num_batched_tokens", -1, "--max-num-batched-tokens must be .* got -1"),
        ("page_size", 1.5, "--page-size must be .* got 1.5"),
        ("max_model_len", 0, "--max-model-len must be .* got 0"),
        ("threads", 0, "--threads must be .* got 0"),
        ("threads", 10**400, "--threads must be at most 1024, got 10"),
        ("max_num_batched_tokens", 10**11, "--max-num-batched-tokens must be at most 1048576"),
        ("threads", True, "--threads must be .* got True"),
        ("seed", -1, "--seed must be an integer of at least 0, got -1"),
        (
            "eviction_policy",
            "fifo",
            "--eviction-policy must be one of hit-density, lru, got 'fifo'",
        ),
        ("kv_cache_dtype", "fp8", "--kv-cache-dtype must be one of bf16, int8, .* got 'fp8'"),
        ("kv_cache_memory", "much", "--kv-cache-memory must be a size such as 2GiB"),
        ("kv_cache_memory", -1, "--kv-cache-memory must not be negative, got -1"),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig("m", **{field: value})


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="model must be a path or a name, got ''"):
        EngineConfig("")


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, kvreuse; loaded = {'numpy', 'tokenizers', 'jinja2'} & set(sys.modules); "
        "assert not loaded, loaded; assert 'LLM' in dir(kvreuse); "
        "from kvreuse import SamplingParams; SamplingParams()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="module 'kvreuse' has no attribute 'Llama'"):
        kvreuse.Llama  # noqa: B018
