"""The engine is close to the truth: its next-token distributions against a float32 oracle's.

``KVREUSE_TRUTH_TEXTS`` may name more text files, separated as in ``PATH``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .kv_codecs import codec_for, untransformed
from .oracle import Fidelity, Oracle
from .truth import TOKENS, EngineModel, measure_all, standard_text

CODECS = ("int8", "k8v4", "int4")

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


@pytest.fixture(scope="module", params=["pydoc_data.topics", *MORE_TEXTS])
def found(
    request: pytest.FixtureRequest, oracle: Oracle, engine: EngineModel
) -> dict[str, Fidelity]:
    """Every codec over one text: the transforms that need no calibration, and none at all."""
    source = str(request.param)
    standard = source == "pydoc_data.topics"
    text = standard_text() if standard else Path(source).read_text(encoding="utf-8")
    token_ids = engine.encode(text)
    assert len(token_ids) == TOKENS
    engines = {name: engine.with_codec(codec_for(engine.shape, name)) for name in CODECS}
    engines["int4, naive"] = engine.with_codec(untransformed(engine.shape, "int4"))
    return measure_all(oracle, {"bf16": engine, **engines}, token_ids)


def test_close_to_the_truth(found: dict[str, Fidelity]) -> None:
    plain = found["bf16"]
    assert plain.tokens == TOKENS
    # a model that reads English is not lost in it: the truth is one
    assert 3 < plain.reference_perplexity < 60
    assert not plain.faults(), plain


def test_what_codecs_cost(found: dict[str, Fidelity], real_model: Path, model_path: Path) -> None:
    """Mean KL beyond that of bf16, without a calibration. How much depends on a model's keys:
    bounds, about twice what was measured, are those of the default one."""
    costs = {name: one.mean_kl - found["bf16"].mean_kl for name, one in found.items()}
    assert costs["int8"] < costs["k8v4"] < costs["int4"]
    if real_model == model_path:
        for name, bound in {"int8": 5e-4, "k8v4": 1.2e-2, "int4": 0.12}.items():
            assert costs[name] < bound, name
        assert costs["int4"] < 0.7 * costs["int4, naive"]
