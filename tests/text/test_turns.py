"""TurnMemory: the tokens of a conversation are kept as long as its text agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer
from kvreuse.text.turns import TurnMemory

PROMPT = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    with open_checkpoint(model_path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


@pytest.fixture
def memory(tokenizer: Tokenizer) -> TurnMemory:
    return TurnMemory(tokenizer)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text that no tokenizer would choose: one a letter."""
    return [token for letter in text for token in tokenizer.encode(letter)]


def natural(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_the_generated_tokens_are_kept(memory: TurnMemory, tokenizer: Tokenizer) -> None:
    ids, answer = natural(tokenizer, PROMPT), letters(tokenizer, "one two")
    end = tokenizer.literal_id("<|im_end|>")
    assert end is not None
    for generated in ([*answer, end], answer):  # ended by itself, or cut off
        memory.remember(PROMPT, ids, generated)
        turn = memory.encode(PROMPT + "one two" + NEXT)
        assert turn == [*ids, *answer, *natural(tokenizer, NEXT)]
    assert len(memory) == 1
    assert memory.num_tokens == len(ids) + len(answer)


def test_not_where_the_text_differs_or_goes_on(memory: TurnMemory, tokenizer: Tokenizer) -> None:
    memory.remember(PROMPT, natural(tokenizer, PROMPT), letters(tokenizer, "one two"))
    for answer in ("one two, three", "one", "", "One two"):
        text = PROMPT + answer + NEXT
        assert memory.encode(text) == natural(tokenizer, text)
    assert memory.encode(PROMPT + "one two") == natural(tokenizer, PROMPT + "one two")


def test_the_longest_turn_counts(memory: TurnMemory, tokenizer: Tokenizer) -> None:
    ids, first, second = natural(tokenizer, PROMPT), *(letters(tokenizer, t) for t in ("aa", "bb"))
    memory.remember(PROMPT, ids, first)
    turn = memory.encode(PROMPT + "aa" + NEXT)
    memory.remember(PROMPT + "aa" + NEXT, turn, second)
    whole = memory.encode(PROMPT + "aa" + NEXT + "bb" + NEXT)
    assert whole == [*turn, *second, *natural(tokenizer, NEXT)]
    edited = memory.encode(PROMPT + "aa" + NEXT + "cc" + NEXT)
    assert edited == [*turn, *natural(tokenizer, "cc" + NEXT)]


def test_salts_know_nothing_of_each_other(memory: TurnMemory, tokenizer: Tokenizer) -> None:
    ids, answer = natural(tokenizer, PROMPT), letters(tokenizer, "one two")
    memory.remember(PROMPT, ids, answer, "a")
    text = PROMPT + "one two" + NEXT
    assert memory.encode(text, "a")[: len(ids + answer)] == ids + answer
    for salt in (None, "", "b"):
        assert memory.encode(text, salt) == natural(tokenizer, text)


def test_tokens_that_spell_nothing_are_not_kept(memory: TurnMemory, tokenizer: Tokenizer) -> None:
    ids = natural(tokenizer, PROMPT)
    half = natural(tokenizer, "\U0001f9ff")[:1]
    memory.remember(PROMPT, ids, half)
    memory.remember(PROMPT + "other", ids, letters(tokenizer, "one"))
    memory.remember(PROMPT, ids, [])
    assert len(memory) == 0


def test_only_so_many_are_kept(tokenizer: Tokenizer) -> None:
    ids = natural(tokenizer, PROMPT)
    memory = TurnMemory(tokenizer, capacity=2 * len(ids) + 8)
    for answer in ("aa", "bb"):
        memory.remember(PROMPT, ids, letters(tokenizer, answer))
    memory.encode(PROMPT + "aa" + NEXT)  # now the one used last
    memory.remember(PROMPT, ids, letters(tokenizer, "cc"))
    kept = {a: memory.encode(PROMPT + a + NEXT) for a in ("aa", "bb", "cc")}
    assert kept["bb"] == natural(tokenizer, PROMPT + "bb" + NEXT)
    assert all(kept[a][len(ids) :][:2] == letters(tokenizer, a) for a in ("aa", "cc"))
    memory.remember(PROMPT, ids, letters(tokenizer, "x" * 100))
    assert memory.num_tokens <= 2 * len(ids) + 8


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.text("ab <|im_end|>\n\u00e9", max_size=12), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    other=st.text("ab <\n", max_size=6),
)
def test_whatever_is_remembered_the_text_is_spelled(
    tokenizer: Tokenizer, turns: list[tuple[str, bool]], other: str
) -> None:
    memory = TurnMemory(tokenizer)
    text = PROMPT
    for answer, odd in turns:
        ids = memory.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        spelled = letters(tokenizer, answer) if odd else natural(tokenizer, answer)
        memory.remember(text, ids, spelled)
        text += answer + NEXT
        memory.encode(text[: len(text) // 2] + other)
    assert tokenizer.decode(memory.encode(text), skip_special_tokens=False) == text


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.sampled_from(["<|im_end|>", "<|im_", " ", "\n", "abc", "\u00e9"])))
def test_a_text_may_be_cut_where_a_literal_starts(tokenizer: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    starts = tokenizer.literal_starts(text)
    assert len(starts) == text.count("<|im_end|>")
    for cut in starts:
        assert text.startswith("<|im_end|>", cut)
        halves = natural(tokenizer, text[:cut]) + natural(tokenizer, text[cut:])
        assert halves == natural(tokenizer, text)
