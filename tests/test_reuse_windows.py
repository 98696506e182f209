"""Reuse in a model whose layers see a window of 64 tokens only: pages behind it are reused, too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kvreuse.api.sampling_params import SamplingParams

from .model.gguf.gguf_files import write_tiny
from .serving import Answered, Model, Server

WINDOW = 64
PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, codec: str) -> Model:
    path: Path = tmp_path_factory.mktemp("model") / "gemma3.gguf"
    model = Model(write_tiny(path, "gemma3", window=WINDOW, context=2048, layers=7), codec)
    assert set(model.shape.windows) == {WINDOW, None}
    return model


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 97, 128, 150, 300])
def test_a_prefix_of_a_longer_prompt_is_cold(model: Model, length: int) -> None:
    ids = np.random.default_rng(0).integers(0, model.shape.vocab_size, 400).tolist()
    warm, cold = Server(model), Server(model, enable_prefix_caching=False)
    warm.answer(ids, PARAMS)
    for prompt in (ids[:length], [*ids[:length], *ids[7:19]]):
        answered, expected = warm.answer(prompt, PARAMS), cold.answer(prompt, PARAMS)
        same(answered, expected)
        assert answered.cached >= length - 1
    together = dataclasses.replace(PARAMS, n=3, temperature=1.0, seed=1)
    request = warm.add(ids[:length], together)
    warm.finish()
    for index in range(3):
        alone = dataclasses.replace(together, n=1, seed=1 + index)
        same(warm.answered(request, index), cold.answer(ids[:length], alone))


def same(answered: Answered, expected: Answered) -> None:
    """Equal ids, and equal logits to the bit."""
    assert answered.ids == expected.ids
    np.testing.assert_array_equal(answered.logits, expected.logits)
