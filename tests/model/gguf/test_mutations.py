"""Damaged files: whatever was done to the bytes, one clear line comes out, or a sound model."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvreuse.errors import ModelFileError, RequestError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.open import open_checkpoint
from kvreuse.model.tensors import weights_of
from kvreuse.text.chat import chat_template
from kvreuse.text.tokenizer import Tokenizer

from .gguf_files import write_tiny_llama

ROUNDS = 150
EXTREMES = (0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 33, 1 << 63, (1 << 64) - 1)
MESSAGES = [{"role": "user", "content": "hi"}]


def use(path: Path) -> str:
    """Read all that loading a model reads; the one line of the error, or nothing."""
    try:
        with open_checkpoint(path) as checkpoint:
            spec = checkpoint.shape
            tokenizer = Tokenizer(checkpoint.vocabulary)
            for weight, dims in weights_of(spec):
                tensor = checkpoint.tensors[weight]
                assert tensor.shape == dims
                assert checkpoint.data(tensor).size == tensor.nbytes
            assert tokenizer.vocab_size == spec.vocab_size
            template = chat_template(checkpoint.chat_templates, tokenizer)
    except ModelFileError as error:
        return str(error)
    try:
        ids = tokenizer.encode("Hello, wörld 123")
        tokenizer.decode(ids)
        if template:
            template.render(MESSAGES)
    except RequestError as error:
        return str(error)
    return ""


def flip(content: bytearray, at: int, rng: random.Random) -> None:
    content[at] ^= 1 << rng.randrange(8)


def extreme(content: bytearray, at: int, rng: random.Random) -> None:
    content[at : at + 8] = struct.pack("<Q", rng.choice(EXTREMES))


def cut(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at:]


def delete(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at : at + rng.randrange(1, 40)]


def noise(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:] = rng.randbytes(len(content) - at)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of each kind."""
    path = tmp_path_factory.mktemp("model") / "x.gguf"
    if request.param == "gpt2":
        return write_tiny_llama(path, layers=1, vocab=260)
    keys: dict[str, Any] = dict.fromkeys(("tokenizer.ggml.merges", "tokenizer.ggml.pre"))
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "Hell"]
    keys |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-float(index) for index in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1],
    }
    return write_tiny_llama(path, layers=1, vocab=len(pieces), extra=keys)


@pytest.mark.parametrize("mutate", [flip, extreme, cut, delete, noise])
def test_damage(mutate: object, model: Path, tmp_path: Path) -> None:
    assert callable(mutate)
    assert use(model) == ""
    with GGUFFile(model) as file:
        header = min(tensor.offset for tensor in file.tensors.values())
    original, rng = model.read_bytes(), random.Random(7)
    refused = 0
    for _ in range(ROUNDS):
        content = bytearray(original)
        mutate(content, rng.randrange(header), rng)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(content)
        line = use(path)
        assert line.isprintable()
        refused += bool(line)
    assert refused > ROUNDS // 4


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(counts=st.tuples(st.integers(0, 3), st.integers(0, 3)), rest=st.binary(max_size=200))
def test_random_bytes_behind_a_good_start(
    counts: tuple[int, int], rest: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "random.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + rest)
    assert use(path).isprintable()
    assert use(path).startswith(str(path))
