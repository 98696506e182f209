"""Two prompts: how far they share, against a loop; where they part; what is shown of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.study.why.asked import asked
from kvreuse.study.why.compare import CONTEXT, Comparison, compare, difference
from kvreuse.study.why.rendered import Texts

from .chats import QUESTION, RULES, chat

WORDS = st.text("ab c\n", max_size=40)


def compared(texts: Texts, one: Any, other: Any, page_size: int = 32) -> Comparison:
    first, second = (texts.rendered(asked(data, "x")) for data in (one, other))
    return compare(first, second, page_size)


@settings(max_examples=80, deadline=None)
@given(head=WORDS, one=WORDS, other=WORDS)
def test_counts(texts: Texts, head: str, one: str, other: str) -> None:
    pair = [text for text in (head + one, head + other) if text]
    if len(pair) < 2:
        return
    ids = [texts.tokenizer.encode(text) for text in pair]
    shared = 0
    while shared < min(map(len, ids)) and ids[0][shared] == ids[1][shared]:
        shared += 1
    found = compared(texts, {"prompt": pair[0]}, {"prompt": pair[1]})
    assert (found.one_tokens, found.other_tokens) == (len(ids[0]), len(ids[1]))
    assert found.shared_tokens == shared
    assert found.reused_tokens == min(shared, len(ids[1]) - 1)
    assert found.shared_pages == shared // 32
    assert found.part is None
    assert (found.difference is None) == (pair[0] == pair[1])


def test_chats(texts: Texts) -> None:
    first, second = (chat(f"It is {time}. {RULES}", QUESTION) for time in ("10:15", "10:48"))
    found = compared(texts, first, second)
    assert found.part == "system text"
    gap = found.difference
    assert gap is not None
    assert gap.before.endswith("It is ")
    assert (gap.one, gap.other) == ("10:15", "10:48")
    assert gap.one_after.startswith(". You are")
    other = compared(texts, chat(RULES, QUESTION), chat(RULES, "Who is there?"))
    assert (other.part, other.culprit) == ("message 2 (user)", None)


def test_a_chat_that_goes_on_parts_nowhere(texts: Texts) -> None:
    turns = [QUESTION, "All of them.", "Really?"]
    found = compared(texts, chat(RULES, *turns[:1]), chat(RULES, *turns))
    assert (found.part, found.culprit) == (None, None)
    assert found.shared_tokens == found.one_tokens


def test_across_salts_nothing_is_reused(texts: Texts) -> None:
    found = compared(texts, chat(RULES, QUESTION), chat(RULES, QUESTION, cache_salt="a"))
    assert found.reused_tokens == 0
    assert found.shared_tokens == found.one_tokens


@given(head=WORDS, one=WORDS, other=WORDS, widen=st.integers(0, 5))
def test_what_is_shown_is_what_is_there(head: str, one: str, other: str, widen: int) -> None:
    first, second = head + one, head + other
    gap = difference(first, second, widen)
    if gap is None:
        assert first == second
        return
    assert first[: gap.at] == second[: gap.at]
    assert first[gap.at : gap.at + 1] != second[gap.at : gap.at + 1]
    assert gap.before + gap.one + gap.one_after in first
    assert gap.before + gap.other + gap.other_after in second
    assert len(gap.before) <= CONTEXT


@pytest.mark.parametrize(("one", "other"), [("cat", "dog"), ("a longer piece", "b")])
def test_the_piece_ends_where_the_texts_agree_again(one: str, other: str) -> None:
    gap = difference(f"The {one} sat on the mat.", f"The {other} sat on the mat.")
    assert gap is not None
    assert (gap.one, gap.other) == (one, other)
    assert gap.one_after == gap.other_after == " sat on the mat."
