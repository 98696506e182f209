"""The engine is close to the truth: its next-token distributions against a float32 oracle's.

``KVREUSE_TRUTH_TEXTS`` may name more text files, separated as in ``PATH``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .oracle import Oracle
from .truth import TOKENS, EngineModel, measure, standard_text

MORE_TEXTS = [p for p in os.environ.get("KVREUSE_TRUTH_TEXTS", "").split(os.pathsep) if p]


@pytest.fixture(scope="module")
def oracle(model_path: Path) -> Oracle:
    return Oracle(model_path)


@pytest.fixture(scope="module")
def engine(model_path: Path) -> EngineModel:
    return EngineModel(model_path)


@pytest.mark.parametrize("source", ["pydoc_data.topics", *MORE_TEXTS])
def test_close_to_the_truth(oracle: Oracle, engine: EngineModel, source: str) -> None:
    standard = source == "pydoc_data.topics"
    text = standard_text() if standard else Path(source).read_text(encoding="utf-8")
    token_ids = engine.encode(text)
    assert len(token_ids) == TOKENS
    found = measure(oracle, engine, token_ids)
    assert found.tokens == TOKENS
    # a model that reads English is not lost in it: the truth is one
    assert 5 < found.reference_perplexity < 60
    assert not found.faults(), found
