"""Logs: what they reuse and lose, by cause and by line, and what mending gives."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from kvreuse.errors import RequestError
from kvreuse.study.why.asked import asked
from kvreuse.study.why.culprits import Cause
from kvreuse.study.why.log import LogReport, report
from kvreuse.study.why.rendered import Texts

from .chats import QUESTION, RULES, TOOLS, chat

TURNS = [
    f"This is turn number {number}, which has some more words than it needs."
    for number in range(16)
]


def replay(texts: Texts, requests: Sequence[Any]) -> LogReport:
    found = report([asked(one, f"line {n}") for n, one in enumerate(requests, 1)], texts, 32)
    assert sum(one.lost for one in found.causes) == found.lost
    assert all(line.cached + line.lost < line.tokens for line in found.lines)
    assert found.mended_hit_rate >= found.hit_rate
    return found


def clocks() -> list[Any]:
    return [chat(f"It is 10:{i:02d}. {RULES}", f"Which ships are in dock {i}?") for i in range(12)]


def ids() -> list[Any]:
    drawn = random.Random(0)
    names = [uuid.UUID(int=drawn.getrandbits(128)) for _ in range(8)]
    return [chat(f"Session {name}. {RULES}", QUESTION) for name in names]


def fields() -> list[Any]:
    names = ("Alice", "Bob", "Carol", "Dan", "Alice")
    return [chat(f"You speak with {name}. {RULES}", QUESTION) for name in names]


def tools() -> list[Any]:
    drawn = random.Random(0)
    return [chat(RULES, QUESTION, tools=drawn.sample(TOOLS, 3)) for _ in range(8)]


def keys() -> list[Any]:
    other = [dict(reversed(tool.items())) for tool in TOOLS]
    return [chat(RULES, QUESTION, tools=one) for one in (TOOLS, other, TOOLS, other)]


@pytest.mark.parametrize(
    ("requests", "cause"),
    [
        (clocks(), Cause.CLOCK),
        (ids(), Cause.RANDOM_ID),
        (fields(), Cause.FIELD),
        (tools(), Cause.TOOL_ORDER),
        (keys(), Cause.KEY_ORDER),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
def test_each_cause_is_found_and_mending_it_gets_its_tokens_back(
    with_tools: Texts, requests: list[Any], cause: Cause
) -> None:
    found = replay(with_tools, requests)
    (only,) = found.causes
    assert only.cause is cause
    assert only.lost == found.lost > 0
    assert only.mended_hit_rate == found.mended_hit_rate > 0.7 * (len(requests) - 1) / len(requests)
    worst = found.worst(3)
    assert worst[0].lost >= worst[-1].lost > 0
    assert worst[0].culprit is not None
    assert worst[0].difference is not None
    assert worst[0].part in ("system text", "tool 1")


def test_a_log_that_loses_nothing(texts: Texts) -> None:
    requests = [chat(RULES, *TURNS[:count]) for count in (1, 3, 5, 7)]
    requests += [chat(RULES, f"Which ships are in dock {i}?") for i in range(5)]
    found = replay(texts, requests)
    assert found.causes == ()
    assert found.lost == 0
    assert found.worst(5) == []
    assert found.mended_hit_rate == found.hit_rate > 0.7
    new = found.lines[3].tokens - found.lines[3].cached
    assert new < len(TURNS[0].split()) * 3  # the newest question only: answers count


def test_a_history_that_is_cut(texts: Texts) -> None:
    requests = [chat(RULES, *TURNS[start : start + 7]) for start in range(0, 8, 2)]
    found = replay(texts, requests)
    (only,) = found.causes
    assert (only.cause, only.lines) == (Cause.HISTORY, 3)
    assert only.mended_hit_rate == found.mended_hit_rate > found.hit_rate + 0.3


def test_a_template_that_is_not_append_only(forgetful: Texts, texts: Texts) -> None:
    thoughts = [f"<think>{turn}</think>{turn}" if i % 2 else turn for i, turn in enumerate(TURNS)]
    requests = [chat(RULES, *thoughts[:count]) for count in (2, 4, 6)]
    found = replay(forgetful, requests)
    (only,) = found.causes
    assert (only.cause, only.lines) == (Cause.TEMPLATE, 2)
    assert only.mended_hit_rate == found.mended_hit_rate > found.hit_rate
    assert replay(texts, requests).causes == ()


def test_causes_on_top_of_each_other(with_tools: Texts) -> None:
    drawn = random.Random(1)
    requests = [
        chat(f"It is 10:{i:02d}. {RULES}", QUESTION, tools=drawn.sample(TOOLS, 3)) for i in range(9)
    ]
    found = replay(with_tools, requests)
    assert {one.cause for one in found.causes} == {Cause.TOOL_ORDER, Cause.CLOCK}
    alone = [one.mended_hit_rate or 0.0 for one in found.causes]
    assert found.mended_hit_rate > max(alone) + 0.05
    assert found.mended_hit_rate > 0.8


def test_prompts_of_different_salts_and_forms(texts: Texts) -> None:
    requests = [
        {"prompt": RULES, "cache_salt": "a"},
        {"prompt": RULES, "cache_salt": "b"},
        {"prompt": RULES, "cache_salt": "a"},
        {"prompt": [5, 6, 7]},
        {"prompt": [5, 6, 7]},
    ]
    found = replay(texts, requests)
    size = len(texts.tokenizer.encode(RULES))
    assert [line.cached for line in found.lines] == [0, 0, size - 1, 0, 2]


def test_progress_ends_where_it_said(texts: Texts) -> None:
    told: list[tuple[int, int]] = []
    requests = [asked(one, "x") for one in clocks()]
    report(requests, texts, 32, lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1]


def test_a_line_that_the_template_refuses_is_named(texts: Texts) -> None:
    bad = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"x": 1}}
    requests = [asked(bad, "line 1"), asked({"prompt": [10**7]}, "line 2")]
    with pytest.raises(RequestError, match=r"^line 2: token id 10000000 is outside"):
        report(requests, texts, 32)
    none = Texts(texts.tokenizer, None)
    with pytest.raises(RequestError, match=r"^line 1: the model has no chat template"):
        report(requests, none, 32)
