"""What requests share is read once a step for all of them: ``==`` with each reading it alone.

Through the engine: prompts behind a prefix that is in the cache, or being computed, or ended within
a part of 512 tokens, then decode; every free page holds NaN patterns.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kvreuse.api.sampling_params import SamplingParams

from .model.gguf.gguf_files import write_tiny
from .serving import Model, Server

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SHARED = 640


@pytest.fixture(scope="module", params=["grouped queries", "one query a key", "windows", "auto"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    if request.param == "windows":
        return Model(write_tiny(path, "gemma3", window=64, context=1024, layers=4))
    heads = 4 if request.param == "one query a key" else 2
    codec = request.param if request.param == "auto" else "bf16"
    return Model(write_tiny(path, "llama", heads=4, kv_heads=heads, context=1024), codec)


def tree(model: Model) -> list[list[int]]:
    """12 prompts: all begin alike, each half goes on alike, then each with 1 to 34 of its own."""
    random = np.random.default_rng(1)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = random.integers(3, model.shape.vocab_size, count).tolist()
        return drawn

    head, halves = tokens(SHARED), [tokens(90), tokens(40)]
    return [head + halves[i % 2] + tokens(1 + 3 * i) for i in range(12)]


def serve(model: Model, prompts: list[list[int]], first: int, **options: bool) -> Server:
    """The first prompt's first tokens, then all prompts at once."""
    server = Server(model, pages=96, **options)
    server.answer(prompts[0][:first], dataclasses.replace(PARAMS, max_tokens=1))
    for prompt in prompts:
        server.add(prompt, PARAMS)
    server.finish()
    return server


@pytest.mark.parametrize("first", [1, SHARED, SHARED + 60])
def test_together_is_alone(model: Model, first: int) -> None:
    same_together(model, first)


def test_together_is_alone_in_a_real_model(model_path: Path) -> None:
    same_together(Model(model_path), SHARED)


def same_together(model: Model, first: int) -> None:
    """Everything of the tree, grouped and not: ids, logits to the bit, and what was read."""
    prompts = tree(model)
    together, apart = (serve(model, prompts, first, grouped=way) for way in (True, False))
    for name in together.outputs:
        answered, expected = together.answered(name), apart.answered(name)
        assert answered.ids == expected.ids
        np.testing.assert_array_equal(answered.logits, expected.logits)
        assert np.isfinite(answered.logits).all()
    assert together.runner.rows == apart.runner.rows
    read, alone = (server.engine.counters.page_bytes_read for server in (together, apart))
    assert 0 < read < 0.8 * alone


def test_bytes_read_in_a_step(model: Model) -> None:
    """8 requests that share 640 of 650 tokens and decode: those are read once, not 8 times."""
    prompts = [tree(model)[0][:SHARED] + [3 + i] * 10 for i in range(8)]
    read = {}
    for grouped in (True, False):
        server = Server(model, pages=96, grouped=grouped)
        server.answer(prompts[0], dataclasses.replace(PARAMS, max_tokens=1))
        for prompt in prompts:
            server.add(prompt, PARAMS)
        while server.runner.rows[-1] != [1] * 8:
            before = server.engine.counters.page_bytes_read
            server.step()
        read[grouped] = server.engine.counters.page_bytes_read - before
        server.finish()
    windows = model.shape.windows
    for grouped, times in ((True, 1), (False, 8)):
        tiles = sum(times * 20 + 8 if window is None else times * 2 + 8 for window in windows)
        assert read[grouped] == tiles * model.layout.page_bytes // len(windows)
