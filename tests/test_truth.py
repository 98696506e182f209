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
def oracle(real_model: Path) -> Oracle:
    return Oracle(real_model)


@pytest.fixture(scope="module")
def engine(real_model: Path) -> EngineModel:
    return EngineModel(real_model)


def test_knows_a_capital(oracle: Oracle, engine: EngineModel) -> None:
    token_ids = engine.encode("The capital of Italy is Rome. The capital of France is")
    for logits in (oracle.logits(token_ids), next(engine.logits(token_ids))):
        assert engine.tokenizer.decode([int(logits[-1].argmax())]) == " Paris"


@pytest.mark.parametrize("source", ["pydoc_data.topics", *MORE_TEXTS])
def test_close_to_the_truth(oracle: Oracle, engine: EngineModel, source: str) -> None:
    standard = source == "pydoc_data.topics"
    text = standard_text() if standard else Path(source).read_text(encoding="utf-8")
    token_ids = engine.encode(text)
    assert len(token_ids) == TOKENS
    found = measure(oracle, engine, token_ids)
    assert found.tokens == TOKENS
    # a model that reads English is not lost in it: the truth is one
    assert 3 < found.reference_perplexity < 60
    assert not found.faults(), found
