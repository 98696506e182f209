"""The engine takes what its plan says: the pool to the byte, all memory within 3%."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse import LLM
from kvreuse.config import EngineConfig
from kvreuse.errors import ConfigError
from kvreuse.kv.layout import KVLayout
from kvreuse.kv.pool import PagePool
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.engine import PoolPlan, plan_engine
from kvreuse.plan.memory import KVPlan
from kvreuse.plan.source import find_model

from ..model.gguf.gguf_files import write_tiny

BACKEND = NativeBackend(threads=1)

LAYOUT = KVLayout.uniform(num_layers=3, num_kv_heads=2, head_dim=48)
SLACK = 2 << 20
"""Addresses, without memory, by which the mapping is moved to a multiple of a huge page."""
POOL = "512MiB"


@given(budget=st.integers(LAYOUT.page_bytes, 1 << 50))
def test_one_page_more_does_not_fit(budget: int) -> None:
    plan = PoolPlan.within(LAYOUT, budget)
    assert plan.nbytes <= budget < plan.nbytes + LAYOUT.page_bytes
    assert PoolPlan.within(LAYOUT, plan.nbytes) == plan
    assert PoolPlan.within(LAYOUT, plan.nbytes + LAYOUT.page_bytes).num_pages == plan.num_pages + 1


def test_a_budget_below_a_page() -> None:
    with pytest.raises(ConfigError, match="holds no page"):
        PoolPlan.within(LAYOUT, LAYOUT.page_bytes - 1)


def mapped_bytes(pool: PagePool) -> int:
    """Bytes of the mapping itself, found below the arrays that look into it."""
    base: object = pool.data
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    assert isinstance(base, mmap.mmap)
    return len(base)


def test_the_pool_is_planned_to_the_byte(real_model: Path) -> None:
    config = EngineConfig(str(real_model), kv_cache_memory=POOL)
    with open_checkpoint(real_model) as checkpoint:
        layout = KVLayout.of(checkpoint.shape)
        plan = plan_engine(checkpoint, layout, config, BACKEND)
    pool = PagePool(layout, plan.pool.num_pages)
    assert plan.pool.nbytes == pool.nbytes == pool.data.nbytes == mapped_bytes(pool) - SLACK
    by_shape = KVPlan(find_model(str(real_model), BACKEND).shape).page_bytes
    assert pool.nbytes == plan.pool.num_pages * by_shape
    assert plan.total == plan.weights + plan.buffers + plan.process + pool.nbytes
    pool.close()


def test_an_engine_starts_from_its_plan(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x.gguf", matrix_type="Q5_1", embed_type="F16", hidden=96)
    with LLM(path, kv_cache_memory="1MiB") as llm:
        assert llm.pool.num_pages == llm.memory.pool.num_pages
        assert llm.pool.nbytes == llm.memory.pool.nbytes
        assert mapped_bytes(llm.pool) == llm.memory.pool.nbytes + SLACK
        vectors = sum(4 * t.shape[0] for t in GGUFFile(path).tensors.values() if len(t.shape) == 1)
        assert llm.memory.weights == llm.runner.weights.nbytes + vectors
        for words in ("when full", "weights", "KV cache", "buffers", "process"):
            assert words in str(llm.memory)
        assert "64 pages of 16 KiB, 2,048 tokens of 512 bytes in bf16" in str(llm.memory.pool)


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
)
def test_weights_of_every_type(kind: str, tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "x.gguf",
        matrix_type=kind,
        embed_type=kind,
        tied=False,
        hidden=256,
        ffn=256,
        heads=8,
        vocab=330,
    )
    with LLM(path, kv_cache_memory="1MiB") as llm, GGUFFile(path) as file:
        vectors = sum(4 * t.shape[0] for t in file.tensors.values() if len(t.shape) == 1)
        assert llm.memory.weights == llm.runner.weights.nbytes + vectors


def test_resident_memory_is_what_was_planned(real_model: Path) -> None:
    script = Path(__file__).with_name("resident.py")
    done = subprocess.run(
        [sys.executable, script, real_model, POOL], capture_output=True, text=True, check=True
    )
    planned, resident = map(int, done.stdout.split())
    assert abs(planned - resident) <= 0.03 * planned, f"{planned:,} planned, {resident:,} resident"
