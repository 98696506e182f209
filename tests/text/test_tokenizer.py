"""The tokenizer: the right ids, text that comes back, and text as tokens come."""

from __future__ import annotations

import pydoc_data.topics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from kvreuse.errors import RequestError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.vocabulary import read_vocabulary
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import IncrementalDecoder, Tokenizer

from ..model.gguf.gguf_files import tokenizer_metadata, write_tiny_llama
from . import plain_bpe

VOCAB = 400
METADATA = tokenizer_metadata(VOCAB)
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
MERGES: list[str] = METADATA["tokenizer.ggml.merges"]
TRICKY = [
    "",
    " ",
    "Hello world",
    "héllo 👩‍👩‍👧‍👦 naïve ﬁ",
    "日本語テキスト, 中文。한국어 مرحبا שלום ไทย",
    "def f(x):\n    return x**2  # 12345\n\n\n\t\tend\r\n",
    "a" + " " * 37 + "b" + "\n" * 9 + " \t \n x",
    "don't I'LL we've 'tis 's",
    "e\u0301 \u00a0 \u200b ¾ ٣ Ⅷ ½x ₂",
    "__init__ _a_ 3.14e-10 0x1F",
    '#!/bin/sh\nfor i in $(seq 1 10); do echo "$i" >> ~/x; done',
]


def tokenizer_of(path: Path) -> Tokenizer:
    with open_checkpoint(path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


def tiny(tmp_path: Path, **extra: Any) -> Tokenizer:
    """A tokenizer of ``VOCAB`` tokens, with some of its keys replaced."""
    keys = {f"tokenizer.ggml.{name}": value for name, value in extra.items()}
    return tokenizer_of(write_tiny_llama(tmp_path / "x", layers=1, vocab=VOCAB, extra=keys))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that has a token for every byte."""
    return tiny(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def real_file(model_path: Path) -> Iterator[GGUFFile]:
    with GGUFFile(model_path) as file:
        yield file


@pytest.fixture(scope="module")
def real(real_file: GGUFFile) -> Tokenizer:
    return Tokenizer(read_vocabulary(real_file))


def pushes(tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip)
    return [*(decoder.push(token) for token in ids), decoder.flush()]


@pytest.mark.parametrize("text", [*TRICKY, pydoc_data.topics.topics["formatstrings"][:20000]])
def test_the_real_model_has_the_ids_of_plain_bpe(
    text: str, real: Tokenizer, real_file: GGUFFile
) -> None:
    tokens, merges = (real_file.get(f"tokenizer.ggml.{key}", list) for key in ("tokens", "merges"))
    ids = real.encode(text)
    assert ids == plain_bpe.encode(text, tokens, merges)
    assert real.decode(ids) == text


def test_the_real_model(real: Tokenizer) -> None:
    assert real.vocab_size == 49152
    assert (real.bos_token_id, real.eos_token_ids, real.add_bos) == (1, (2, 0), False)
    assert real.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert real.encode("Hello world") == [19556, 905]


def test_bytes_that_the_real_model_lacks(real: Tokenizer) -> None:
    assert real.encode("one\x04 two\x1d") == real.encode("one two")
    with pytest.raises(RequestError) as caught:
        real.encode("\x04\x1d")
    line = "the vocabulary has no token for any character of '\\x04\\x1d'"
    assert str(caught.value) == line


def test_construction_is_quick(real_file: GGUFFile) -> None:
    start = time.perf_counter()
    Tokenizer(read_vocabulary(real_file))
    assert time.perf_counter() - start < 1


@given(text=st.text())
def test_any_text_comes_back(text: str, small: Tokenizer) -> None:
    ids = small.encode(text, parse_special=False)
    assert small.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(small.token_bytes, ids)) == text.encode()


@given(ids=st.lists(st.integers(3, VOCAB - 1)))
def test_decode_is_that_of_the_tokenizers_package(ids: list[int], small: Tokenizer) -> None:
    texts = [TOKENS[token] for token in ids]
    assert small.decode(ids) == decoders.ByteLevel().decode(texts)


@given(ids=st.lists(st.integers(0, VOCAB - 1)), skip=st.booleans())
def test_pushes_concatenate_to_decode(ids: list[int], skip: bool, small: Tokenizer) -> None:
    parts = pushes(small, ids, skip=skip)
    assert "".join(parts) == small.decode(ids, skip_special_tokens=skip)


@given(text=st.text())
def test_no_push_holds_half_a_character(text: str, small: Tokenizer) -> None:
    parts = pushes(small, small.encode(text, parse_special=False), skip=False)
    assert "".join(parts) == text
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")
    assert parts[-1] == ""


def test_half_a_character_at_the_end_is_flushed(small: Tokenizer) -> None:
    ids = small.encode("né👍")[:-1]
    parts = pushes(small, ids, skip=True)
    assert "".join(parts[:-1]) == "né"
    assert parts[-1] == "\ufffd"
    assert small.decode(ids) == "né\ufffd"


def test_control_tokens(small: Tokenizer) -> None:
    text = "<|im_start|>x<|im_end|>"
    ids = small.encode(text)
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert small.decode(ids) == "x"
    assert small.decode(ids, skip_special_tokens=False) == text
    assert "".join(pushes(small, ids, skip=True)) == "x"
    as_text = small.encode(text, parse_special=False)
    assert not {0, 1, 2} & set(as_text)
    assert small.decode(as_text) == text
    assert small.is_special(2)
    assert not small.is_special(3)
    assert small.token_text(2) == "<|im_end|>"


def test_user_defined_tokens_are_literal_text(tmp_path: Path) -> None:
    tokenizer = tiny(
        tmp_path,
        tokens=[*TOKENS[:-2], "<tool é>", "ÿé"],
        merges=MERGES[:-2],
        token_type=[3, 3, 3, *[1] * (VOCAB - 5), 4, 4],
    )
    for parse in (True, False):
        assert tokenizer.encode("<tool é>ÿé", parse_special=parse) == [VOCAB - 2, VOCAB - 1]
    assert tokenizer.decode([VOCAB - 2, VOCAB - 1]) == "<tool é>ÿé"


def test_bos(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, add_bos_token=True)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [1, *plain]
    assert tokenizer.encode("") == [1]


def test_an_eos_of_every_kind(tmp_path: Path) -> None:
    assert tiny(tmp_path, eos_token_id=7, eot_token_id=9).eos_token_ids == (7, 9, 0, 2)


def test_a_token_that_is_not_in_the_byte_alphabet(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, tokens=[*TOKENS[:-1], "日 本"], merges=MERGES[:-1])
    assert tokenizer.token_bytes(VOCAB - 1) == "日 本".encode()


def test_ends_of_answers_are_control_tokens(tmp_path: Path) -> None:
    tokens = [*TOKENS[:-2], "</s>", "<end_of_turn>"]
    kinds = [3, 3, 3, *[1] * (VOCAB - 5), 4, 3]
    tokenizer = tiny(tmp_path, tokens=tokens, merges=MERGES[:-2], token_type=kinds)
    assert tokenizer.eos_token_ids == (2, 0, VOCAB - 1)
    assert tokenizer.literal_id("</s>") == VOCAB - 2
    assert tokenizer.literal_id("<end_of_turn>") == VOCAB - 1
    assert tokenizer.literal_id("a") is None


@pytest.mark.parametrize(("text", "at"), [("\ud800", 0), ("ab\udcffc", 2)])
def test_lone_surrogates(text: str, at: int, small: Tokenizer) -> None:
    message = rf"a lone surrogate U\+{ord(text[at]):04X} at character {at}$"
    with pytest.raises(RequestError, match=message):
        small.encode(text)


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_outside_the_vocabulary(token: int, small: Tokenizer) -> None:
    message = rf"token id {token} is outside the vocabulary \(0 to {VOCAB - 1}\)"
    with pytest.raises(RequestError, match=message):
        small.decode([5, token])
    with pytest.raises(RequestError, match=message):
        IncrementalDecoder(small).push(token)
