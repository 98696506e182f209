"""Ids as llama.cpp and SentencePiece give them; ``bench/tokenizer_vectors.py`` made the vectors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kvreuse.model.fetch.folders import find
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import IncrementalDecoder, Tokenizer

from ..model.gguf.gguf_files import write_tiny_llama

VECTORS = Path(__file__).parent / "vectors"
NFC = "qwen2"


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return content


TEXTS: dict[str, list[str]] = load("texts")
FILES = {file: name for name in ("smollm2", "gemma3", "qwen2.5") for file in load(name)["files"]}
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"  # the one that is always there
THERE = [file for file in FILES if file == DEFAULT_FILE or find(file)]
PRE: dict[str, Any] = load("bpe")["by_pre"]


def path_of(file: str, model_path: Path) -> Path:
    path = model_path if file == DEFAULT_FILE else find(file)
    assert path
    return path


@pytest.fixture(scope="module", params=THERE)
def real(request: pytest.FixtureRequest, model_path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of each real file that is there, and its vectors."""
    with open_checkpoint(path_of(request.param, model_path)) as checkpoint:
        return Tokenizer(checkpoint.vocabulary), load(FILES[request.param])


@pytest.fixture(scope="module", params=["true", "false"])
def pieces(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, dict[str, Any]]:
    """A small SentencePiece tokenizer, with a space in front of a text and without."""
    content, prefix = load("sentencepiece"), request.param
    keys = content["keys"] | {"tokenizer.ggml.add_space_prefix": prefix == "true"}
    path = tmp_path_factory.mktemp("pieces") / "x.gguf"
    return small(path, keys), content["by_space_prefix"][prefix]


def small(path: Path, keys: dict[str, Any]) -> Tokenizer:
    """A tokenizer with these keys, and none of those that tiny models have otherwise."""
    given = dict.fromkeys(("tokenizer.ggml.pre", "tokenizer.ggml.merges"))
    given |= {"tokenizer.ggml.add_bos_token": None, "tokenizer.chat_template": None, **keys}
    write_tiny_llama(path, layers=1, vocab=len(keys["tokenizer.ggml.tokens"]), extra=given)
    with open_checkpoint(path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


def check(tokenizer: Tokenizer, vectors: dict[str, Any]) -> None:
    """All ids are those of the vectors, and text that comes bit by bit is that of all at once."""
    assert tokenizer.encode(TEXTS["plain"][0]) == vectors["prompt"]
    for name, texts in (("plain", "plain"), ("special", "special"), ("as_text", "special")):
        for text, ids in zip(TEXTS[texts], vectors[name], strict=True):
            parse = name != "as_text"
            found = tokenizer.encode(text, add_special_tokens=False, parse_special=parse)
            assert found == ids, text
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            decoder = IncrementalDecoder(tokenizer, skip_special_tokens=False)
            assert "".join(map(decoder.push, ids)) + decoder.flush() == decoded


def test_real_files(real: tuple[Tokenizer, dict[str, Any]]) -> None:
    check(*real)


@pytest.mark.parametrize("file", THERE)
def test_real_tokenizers_load_quickly(file: str, model_path: Path) -> None:
    start = time.perf_counter()
    with open_checkpoint(path_of(file, model_path)) as checkpoint:
        Tokenizer(checkpoint.vocabulary)
    assert time.perf_counter() - start < 2


def test_pieces(pieces: tuple[Tokenizer, dict[str, Any]]) -> None:
    check(*pieces)


def test_texts_come_back_from_pieces(pieces: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, vectors = pieces
    for text, ids in zip(TEXTS["plain"], vectors["plain"], strict=True):
        assert tokenizer.decode(ids) == text
        after = tokenizer.decode(ids, continuation=True)
        assert after == (f" {text}" if tokenizer.space_prefix else text)


@pytest.mark.parametrize("pre", PRE)
def test_every_cut(pre: str, tmp_path: Path) -> None:
    keys = load("bpe")["keys"] | {"tokenizer.ggml.pre": pre}
    tokenizer = small(tmp_path / "x.gguf", keys)
    known = [pair for pair in zip(TEXTS["plain"], PRE[pre], strict=True) if pair[1] is not None]
    assert len(known) > 60
    for text, ids in known:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        if pre != NFC:
            assert tokenizer.decode(ids) == text
