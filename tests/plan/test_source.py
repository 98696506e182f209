"""What a user may call a model, and what a GGUF header tells of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.kv.layout import KVLayout
from kvreuse.model.fetch.folders import FOLDER_VARIABLE
from kvreuse.model.open import open_checkpoint
from kvreuse.ops.native import NativeBackend
from kvreuse.plan.buffers import StepShape, buffer_bytes
from kvreuse.plan.facts import facts
from kvreuse.plan.memory import KVPlan
from kvreuse.plan.source import find_model
from kvreuse.shape import LayerShape, ModelShape, attention

from ..model.gguf.gguf_files import tiny_metadata, tiny_tensors, write_gguf, write_tiny

BACKEND = NativeBackend(threads=1)
SIZES = ("hidden_size", "intermediate_size", "num_heads", "vocab_size", "post_norms")
CONFIG = dict(facts()["gpt2"].config)


def test_a_page_of_the_plan_is_a_page_of_the_engine(real_model: Path) -> None:
    with open_checkpoint(real_model) as checkpoint:
        layout = KVLayout.of(checkpoint.shape)
    kv = KVPlan(find_model(str(real_model), BACKEND).shape)
    assert (kv.page_bytes, kv.token_bytes) == (layout.page_bytes, layout.bytes_per_token)


def test_header_and_facts_agree(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(model_path.parent))
    of_file = find_model("smollm2-135m", BACKEND)
    assert of_file.source == str(model_path)
    monkeypatch.setenv(FOLDER_VARIABLE, "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    of_facts = find_model("smollm2-135m", BACKEND)  # without the file, too
    assert of_facts.served
    one, other = of_facts.shape, of_file.shape
    assert isinstance(one, ModelShape)
    assert isinstance(other, ModelShape)
    for name in ("architecture", "layers", "context_length", *SIZES):
        assert getattr(one, name) == getattr(other, name)
    assert buffer_bytes(one, StepShape(BACKEND)) == buffer_bytes(other, StepShape(BACKEND))


def test_a_folder_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert find_model(str(tmp_path), BACKEND).weight_bytes is None
    (tmp_path / "model-1-of-2.safetensors").write_bytes(bytes(70))
    (tmp_path / "model-2-of-2.safetensors").write_bytes(bytes(30))
    assert find_model(str(tmp_path), BACKEND).weight_bytes == 100
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 90}}))
    assert find_model(str(tmp_path), BACKEND).weight_bytes == 90
    index.write_text("[" * 100_000)
    assert find_model(str(tmp_path), BACKEND).weight_bytes == 100


def test_a_folder_with_a_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no config\.json, and no GGUF file either"):
        find_model(str(tmp_path), BACKEND)
    write_tiny(tmp_path / "a.gguf")
    assert find_model(str(tmp_path), BACKEND).name == "a"
    write_tiny(tmp_path / "b.gguf")
    with pytest.raises(ModelFileError, match=r"and 2 GGUF files: name one of them"):
        find_model(str(tmp_path), BACKEND)


@pytest.mark.parametrize("name", ["no-such-model", "x" * 5000, "a\0b", "org/repo"])
def test_an_unknown_name_lists_those_there_are(name: str) -> None:
    with pytest.raises(ModelFileError, match="llama-3-8b"):
        find_model(name, BACKEND)


def written(path: Path, architecture: str, **keys: Any) -> Path:
    """A file of an architecture that this engine does not serve; tensors are those of a llama."""
    plain = tiny_metadata("llama", layers=4)
    tensors = tiny_tensors(plain)
    metadata = {key.replace("llama.", f"{architecture}.", 1): value for key, value in plain.items()}
    metadata["general.architecture"] = architecture
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return write_gguf(path, metadata, tensors)


W = 64


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("qwen3moe", {}, [attention(2, 32)] * 4),
        ("llama", {"expert_count": 4}, [attention(2, 32)] * 4),
        ("llama", {"expert_count": 4, "attention__sliding_window": W}, [attention(2, 32, W)] * 4),
        ("gemma2", {"attention__sliding_window": W}, [attention(2, 32, W), attention(2, 32)] * 2),
        ("phi3", {"attention__sliding_window": W}, [attention(2, 32, W)] * 4),
        (
            "gpt-oss",
            {
                "attention__sliding_window": W,
                "attention__sliding_window_pattern": [False, True, True, True],
            },
            [attention(2, 32), *[attention(2, 32, W)] * 3],
        ),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 512, "rope__dimension_count": 64},
            [LayerShape(kv_heads=1, key_dim=576)] * 4,
        ),
        (
            "llama4",
            {"attention__chunk_size": W},
            [*[attention(2, 32, W)] * 3, attention(2, 32)],
        ),
        (
            "nemotron",
            {"attention__head_count_kv": [1, 2, 0, 4]},
            [attention(1, 32), attention(2, 32), LayerShape(), attention(4, 32)],
        ),
    ],
)
def test_headers_of_what_is_not_served(
    architecture: str, keys: dict[str, Any], expected: list[LayerShape], tmp_path: Path
) -> None:
    found = find_model(str(written(tmp_path / "x.gguf", architecture, **keys)), BACKEND)
    assert list(found.shape.layers) == expected
    assert found.shape.architecture == architecture
    assert "not supported" in found.unserved
    assert found.weight_bytes


def test_headers_of_what_is_not_known(tmp_path: Path) -> None:
    path = written(tmp_path / "x.gguf", "starship")
    with pytest.raises(ModelFileError, match="model_type 'starship', num_hidden_layers 4, hidden"):
        find_model(str(path), BACKEND)
