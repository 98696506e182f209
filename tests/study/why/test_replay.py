"""An endless cache, against a loop over all earlier prompts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.study.why.asked import Asked, asked
from kvreuse.study.why.rendered import Texts
from kvreuse.study.why.replay import UnboundedCache, known_until, replayed

from .chats import RULES, chat

PAGE = 32
PROMPTS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b"]),
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=8,
)


def shared(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@settings(max_examples=150, deadline=None)
@given(PROMPTS)
def test_every_prompt_finds_all_that_any_before_it_had(
    drawn: list[tuple[str | None, list[tuple[int, int]]]],
) -> None:
    prompts = [(salt, [t for t, count in runs for _ in range(count)]) for salt, runs in drawn]
    cache = UnboundedCache(PAGE, sum(len(ids) for _, ids in prompts), len(prompts))
    for place, (salt, ids) in enumerate(prompts):
        before = [(one, old) for one, (s, old) in enumerate(prompts[:place]) if s == salt]
        expected = max((shared(old, ids[:-1]) for _, old in before), default=0)
        found, like = cache.serve(np.array(ids, dtype=np.int32), salt, place)
        assert found == expected
        assert (like is None) == (found == 0)
        if like is not None:
            assert dict(before)[like][: found // PAGE * PAGE] == ids[: found // PAGE * PAGE]
            assert found % PAGE == 0 or shared(dict(before)[like], ids) >= found


def found_of(texts: Texts, requests: list[Asked]) -> list[tuple[int, int | None]]:
    ids = [texts.rendered(one).ids for one in requests]
    every = replayed(requests, ids, lambda at: texts.rendered(requests[at]), PAGE, lambda: None)
    return [(one.tokens, one.extends) for one in every]


def test_an_answer_counts_where_the_chat_goes_on(texts: Texts) -> None:
    turns = ["Which ships are in?", "All of them, and " + "one more, " * 30, "Really?", "Yes.", "?"]
    requests = [asked(chat(RULES, *turns[:count]), "x") for count in (1, 3, 5)]
    found = found_of(texts, requests)
    assert [extends for _, extends in found] == [None, 0, 1]
    for place, count in ((1, 3), (2, 5)):
        rendered = texts.rendered(requests[place])
        assert found[place][0] == known_until(requests[place], rendered, count - 1)
        assert found[place][0] > len(rendered.ids) - 20
    apart = [requests[0], asked(chat(RULES, *turns[:3], cache_salt="s"), "x")]
    assert found_of(texts, apart)[1] == (0, None)


def test_answers_of_a_log_count(texts: Texts) -> None:
    answer = " upon a time, " * 20
    first = Asked("x", prompt="Once", answers=(answer,))
    second = Asked("x", prompt="Once" + answer + "there was")
    alone = Asked("x", prompt="Once")
    ids = texts.rendered(second).ids
    assert found_of(texts, [first, second])[1][0] > len(ids) - 8
    assert found_of(texts, [alone, second])[1][0] == 1
