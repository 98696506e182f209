"""From tokens to characters: every token's text lies between its offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.model.open import open_checkpoint
from kvreuse.text.offsets import spells, token_offsets
from kvreuse.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    with open_checkpoint(model_path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


TEXTS = st.lists(
    st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(["<|im_start|>", "<|im_end|>\n"])),
    min_size=1,
    max_size=6,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_offsets_are_where_the_tokens_are(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    offsets = token_offsets(tokenizer, ids, text)
    raw = b"".join(map(tokenizer.token_bytes, ids))
    if raw != text.encode():  # a byte that the vocabulary lacks
        assert not spells(tokenizer, ids, text)
        return
    assert offsets is not None
    assert spells(tokenizer, ids, text)
    assert (offsets[0], offsets[-1]) == (0, len(text))
    for count, offset in enumerate(offsets):
        before = b"".join(map(tokenizer.token_bytes, ids[:count]))
        assert offset == len(before.decode(errors="ignore"))


def test_a_start_of_the_tokens_and_other_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("One two three")
    assert token_offsets(tokenizer, ids[:2], "One two three") == [0, 3, 7]
    assert not spells(tokenizer, ids[:2], "One two three")
    assert token_offsets(tokenizer, ids, "One too three") is None
    special = [tokenizer.eos_token_ids[0], *ids]
    assert token_offsets(tokenizer, special, "One two three") == [0, 0, 3, 7, 13]
    assert not spells(tokenizer, special, "One two three")
    assert spells(tokenizer, [], "")
