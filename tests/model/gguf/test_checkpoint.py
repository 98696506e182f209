"""A GGUF file as a checkpoint: weights by role, templates, defaults, and what stays readable."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.names import NAMES, tensor_name
from kvreuse.model.open import open_checkpoint
from kvreuse.model.tensors import Role, Weight

from .gguf_files import CHAT_TEMPLATE, write_tiny


def test_every_role_has_a_name_of_its_own() -> None:
    assert set(NAMES) == set(Role)
    assert len(set(NAMES.values())) == len(Role)
    assert tensor_name(Weight(Role.UP, 3)) == "blk.3.ffn_up.weight"


def test_weights_by_role(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", "gemma3", rope_factors=[2.0] * 16, tied=False)
    with open_checkpoint(path) as checkpoint, GGUFFile(path) as file:
        assert [tensor.name for tensor in checkpoint.tensors.values()] == list(file.tensors)
        for weight, tensor in checkpoint.tensors.items():
            assert tensor.name == tensor_name(weight)
            np.testing.assert_array_equal(checkpoint.data(tensor), file.data(tensor.name))
            checkpoint.release(tensor)
        assert Weight(Role.ROPE_FACTORS) in checkpoint.tensors


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.digest() == hashlib.sha256(path.read_bytes()).digest()
        assert checkpoint.digest() is checkpoint.digest()


def test_a_closed_checkpoint_keeps_what_it_has_read(tmp_path: Path) -> None:
    with open_checkpoint(write_tiny(tmp_path / "x")) as checkpoint:
        shape = checkpoint.shape
    checkpoint.close()
    assert checkpoint.shape is shape
    assert checkpoint.vocabulary.tokens
    with pytest.raises(ValueError, match="is closed"):
        checkpoint.data(checkpoint.tensors[Weight(Role.EMBEDDING)])


def test_chat_templates_by_name(tmp_path: Path) -> None:
    extra = {
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    with open_checkpoint(write_tiny(tmp_path / "x", extra=extra)) as checkpoint:
        expected = {"default": CHAT_TEMPLATE, "tool_use": "{{ tools }}"}
        assert dict(checkpoint.chat_templates) == expected
    with open_checkpoint(
        write_tiny(tmp_path / "y", extra={"tokenizer.chat_template": None})
    ) as checkpoint:
        assert not checkpoint.chat_templates


def test_generation_defaults(tmp_path: Path) -> None:
    general = gguf.Keys.General
    extra: dict[str, Any] = {
        general.SAMPLING_TEMP: 0.5,
        general.SAMPLING_TOP_K: 20,
        general.SAMPLING_TOP_P: 0.75,
        general.SAMPLING_MIN_P: 0.125,
        general.SAMPLING_PENALTY_REPEAT: 1.5,
        general.SAMPLING_MIROSTAT: 1,
    }
    with open_checkpoint(write_tiny(tmp_path / "x", extra=extra)) as checkpoint:
        assert dict(checkpoint.generation_defaults) == {
            "temperature": 0.5,
            "top_k": 20,
            "top_p": 0.75,
            "min_p": 0.125,
            "repetition_penalty": 1.5,
        }
    with open_checkpoint(write_tiny(tmp_path / "y")) as checkpoint:
        assert not checkpoint.generation_defaults
    extra = {general.SAMPLING_TEMP: "hot"}
    with (
        open_checkpoint(write_tiny(tmp_path / "z", extra=extra)) as checkpoint,
        pytest.raises(ModelFileError, match="temp' must hold a number, it holds text"),
    ):
        _ = checkpoint.generation_defaults


def test_the_vocabulary_of_a_model_that_is_not_served(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x", extra={"llama.expert_count": 8})
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(ModelFileError, match=r"'llama.expert_count' is 8, which is not"):
            _ = checkpoint.shape
        assert len(checkpoint.vocabulary.tokens) == 320
        assert checkpoint.chat_templates
