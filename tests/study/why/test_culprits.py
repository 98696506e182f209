"""The usual culprits, and what looks like one and is none."""

from __future__ import annotations

from typing import Any

import pytest

from kvreuse.study.why.asked import asked
from kvreuse.study.why.culprits import CLOCK, RANDOM_ID, Cause, Culprit, culprit, field_of
from kvreuse.study.why.rendered import Texts

from .chats import QUESTION, RULES, TOOLS, chat

CLOCKS = [
    ("2024-05-01", "2024-05-12"),
    ("2024-05-01T10:15:31Z", "2024-05-01T10:15:47Z"),
    ("2024-05-01 10:15:31.250+02:00", "2024-06-01 10:15:31.250+02:00"),
    ("10:15", "10:48"),
    ("9:05 AM", "10:05 PM"),
    ("Monday, 3 March 2025", "Tuesday, 4 March 2025"),
    ("Mar 3, 2025 at 10:15", "Apr 13, 2025 at 7:02"),
    ("03/04/2025", "04/04/2025"),
    ("31.12.2024", "01.01.2025"),
    ("1714558531", "1714559999"),
    ("1714558531123", "1714558531999"),
]
IDS = [
    ("3f2b8c1e-9d4a-4b7f-8e2c-1a2b3c4d5e6f", "8a7d6c5b-4e3f-4a2b-9c1d-0e9f8a7b6c5d"),
    ("3f2b8c1e9d4a", "3f2b8c1e9d4b"),
    ("req_8fK2mQ9x", "req_1bN7pL4z"),
    ("call-a1b2c3d4", "call-a1b2c9z9"),
    ("Zk81nfoP20qmTe73Xb", "Zk81nfoP20qmTe99Qq"),
]
NEITHER = [("Alice", "Bob"), ("version 1.2.3", "version 1.2.4"), ("7 ships", "9 ships")]


def between(texts: Texts, one: Any, other: Any) -> Culprit | None:
    return culprit(texts.rendered(asked(one, "one")), texts.rendered(asked(other, "other")))


@pytest.mark.parametrize(("one", "other"), CLOCKS)
def test_clocks(texts: Texts, one: str, other: str) -> None:
    for form in ("It is {}. ", "Now: {} "):
        pair = [chat(form.format(time) + RULES, QUESTION) for time in (one, other)]
        found = between(texts, *pair)
        assert found is not None
        assert (found.cause, found.one, found.other) == (Cause.CLOCK, one, other)
    assert CLOCK.fullmatch(one)


@pytest.mark.parametrize(("one", "other"), IDS)
def test_random_ids(texts: Texts, one: str, other: str) -> None:
    found = between(texts, *(chat(f"Session {it}. {RULES}", QUESTION) for it in (one, other)))
    assert found is not None
    assert (found.cause, found.one, found.other) == (Cause.RANDOM_ID, one, other)
    assert RANDOM_ID.fullmatch(one)


@pytest.mark.parametrize(("one", "other"), NEITHER)
def test_other_fields_of_the_system_text(texts: Texts, one: str, other: str) -> None:
    found = between(texts, *(chat(f"For {it}: {RULES}", QUESTION) for it in (one, other)))
    assert found is not None
    assert found.cause is Cause.FIELD
    assert found.around is not None
    before, behind = found.around
    assert before + found.one + behind == f"For {one}: {RULES}"
    assert before + found.other + behind == f"For {other}: {RULES}"
    assert found.one in one
    assert found.other in other


def test_system_texts_that_have_little_in_common_are_no_field() -> None:
    assert field_of("You speak about ships.", "You sing of heaven and hell, and of bees.") is None
    found = field_of("For alice: be brief", "For bruce: be brief")
    assert found is not None
    assert (found.one, found.other) == ("alice", "bruce")


def test_clocks_in_plain_prompts(texts: Texts) -> None:
    found = between(texts, {"prompt": f"10:15 {RULES}"}, {"prompt": f"10:48 {RULES}"})
    assert found is not None
    assert found.cause is Cause.CLOCK


def test_what_is_asked_now_may_differ(texts: Texts) -> None:
    pairs = [("Is 10:15 early?", "Is 10:48 early?"), ("What is abc123def?", "What is abc123dee?")]
    for one, other in pairs:
        assert between(texts, chat(RULES, one), chat(RULES, other)) is None
    stamped = [chat(RULES, f"[{time}] {RULES} {QUESTION}") for time in ("10:15", "10:48")]
    found = between(texts, *stamped)
    assert found is not None
    assert found.cause is Cause.CLOCK


def test_tools(with_tools: Texts) -> None:
    first = chat(RULES, QUESTION, tools=TOOLS)
    found = between(with_tools, first, chat(RULES, QUESTION, tools=TOOLS[::-1]))
    assert found is not None
    assert found.cause is Cause.TOOL_ORDER
    assert (found.one, found.other) == ("tides, ships, berths", "berths, ships, tides")
    keys = [dict(reversed(tool.items())) for tool in TOOLS]
    found = between(with_tools, first, chat(RULES, QUESTION, tools=keys))
    assert found is not None
    assert found.cause is Cause.KEY_ORDER
    found = between(with_tools, first, chat(RULES, QUESTION, tools=TOOLS[:1]))
    assert found is not None
    assert found.cause is Cause.TOOLS
    assert between(with_tools, first, chat(RULES, QUESTION, tools=TOOLS)) is None


def test_tools_that_the_template_does_not_print(texts: Texts) -> None:
    one, other = chat(RULES, QUESTION, tools=TOOLS), chat(RULES, "Which are out?", tools=TOOLS[:1])
    assert between(texts, one, other) is None


def test_a_template_that_is_not_append_only(forgetful: Texts, texts: Texts) -> None:
    turns = [QUESTION, "<think>Let me see.</think>All of them.", "Really?"]
    one, other = chat(RULES, *turns[:2]), chat(RULES, *turns)
    found = between(forgetful, one, other)
    assert found is not None
    assert found.cause is Cause.TEMPLATE
    assert between(texts, one, other) is None
    assert between(texts, chat(RULES, *turns[:1]), other) is None


def test_a_history_that_is_cut(texts: Texts) -> None:
    turns = [f"This is turn {number} of many." for number in range(9)]
    found = between(texts, chat(RULES, *turns[:5]), chat(RULES, *turns[2:7]))
    assert found is not None
    assert found.cause is Cause.HISTORY
    assert between(texts, chat(RULES, *turns[:5]), chat(RULES, *turns[6:])) is None


def test_salts_and_nothing(texts: Texts) -> None:
    found = between(texts, chat(RULES, QUESTION), chat(RULES, QUESTION, cache_salt="a"))
    assert found is not None
    assert found.cause is Cause.SALT
    assert between(texts, chat(RULES, QUESTION), chat(RULES, QUESTION)) is None
    assert all(cause.advice for cause in Cause)
