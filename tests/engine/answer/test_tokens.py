"""The adapter for llguidance: bytes, special tokens, and text that follows other text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.api.structured_outputs import StructuredOutputs
from kvreuse.engine.answer.guide.guide import Guides
from kvreuse.engine.answer.guide.tokens import TokenizerWrapper, llguidance_tokenizer
from kvreuse.errors import RequestError
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer

from ...text.test_sentencepiece import ID, tokenizer

TEXTS = st.text("abc s▁\n<>é😀", max_size=12)


@pytest.fixture(scope="module")
def real(real_model: Path) -> Iterator[Tokenizer]:
    """A real model's."""
    with open_checkpoint(real_model) as checkpoint:
        yield Tokenizer(checkpoint.vocabulary)


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """SentencePiece with a space in front of every text, as Llama 2's."""
    return tokenizer(tmp_path_factory.mktemp("prefixed"))


@given(text=TEXTS)
def test_text_is_cut_without_the_space_in_front(prefixed: Tokenizer, text: str) -> None:
    wrapper = TokenizerWrapper(prefixed, prefixed.vocab_size)
    for raw in (text.encode(), text.encode()[1:]):  # also from within a character on
        assert b"".join(wrapper.tokens[token] for token in wrapper(raw)) == raw
    assert wrapper("ab") == [ID["ab"]]
    assert wrapper(" ab") == [ID["▁ab"]]
    assert wrapper("<s>") == [ID["<"], ID["s"], ID[">"]]


def test_text_is_cut_as_the_model_cuts_it(real: Tokenizer) -> None:
    wrapper = TokenizerWrapper(real, real.vocab_size)
    for text in ('{"name": "', "two\nlines", " grüße 日本 "):
        assert wrapper(text) == real.encode(text, add_special_tokens=False)
        assert wrapper(text.encode()) == wrapper(text)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_form_can_be_followed_with_sentencepieces(tmp_path: Path, prefix: bool) -> None:
    found = tokenizer(tmp_path, add_space_prefix=prefix)
    guides = Guides(found, found.vocab_size)
    for text in ("ab bc", "a b", "bcé", "ss"):
        guide = guides.guide(StructuredOutputs(choice=[text, "cab"]))
        assert guide is not None
        said = b""
        while not guide.complete:
            ids = guide.allowed.nonzero()[0].tolist()
            fitting = [i for i in ids if text.encode().startswith(said + found.token_bytes(i))]
            token = max(fitting, key=lambda index: len(found.token_bytes(index)))
            said += found.token_bytes(token)
            guide.accept(token)
        assert said.decode() == text


def test_rows_of_logits_may_be_longer_or_shorter_than_the_vocabulary(real: Tokenizer) -> None:
    anything = StructuredOutputs(regex="(.|\n)*")
    size = real.vocab_size
    guide = Guides(real, size + 100).guide(anything)
    assert guide is not None
    assert guide.allowed.shape == (size + 100,)
    assert guide.allowed[:size].sum() > size * 0.9
    assert not guide.allowed[size:].any()
    special = [index for index in range(size) if real.is_special(index)]
    ends = set(real.eos_token_ids)
    assert {index for index in special if guide.allowed[index]} == ends
    short = Guides(real, size - 10).guide(StructuredOutputs(regex="[a-z]+"))
    assert short is not None
    assert short.allowed.shape == (size - 10,)


def test_what_cannot_be_guided(prefixed: Tokenizer) -> None:
    with pytest.raises(RequestError, match="structured outputs need a tokenizer"):
        Guides(None, 100).guide(StructuredOutputs(regex="a"))
    with pytest.raises(RequestError, match="need a model with an end-of-sequence token"):
        llguidance_tokenizer(prefixed, 2)  # the end of sequence is token 2
