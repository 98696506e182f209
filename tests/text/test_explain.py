"""What a miss reads, where it lies and what it cost, in the results of the real model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvreuse
from kvreuse import LLM, SamplingParams
from kvreuse.api.miss import CACHED_TOKENS, Miss, Reason, Words

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
RULES = "You answer questions about the harbour, its ships, its tides and its people. "


@pytest.fixture
def llm(model_path: Path) -> Iterator[LLM]:
    with kvreuse.LLM(model_path, kv_cache_memory="32MiB", max_model_len=1024) as llm:
        yield llm


def chat(llm: LLM, system: str, question: str, **options: Any) -> Miss:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    (output,) = llm.chat(messages, PARAMS, **options)
    assert output.miss is not None
    assert output.miss.lost_tokens == len(output.prompt_token_ids) - 1 - output.num_cached_tokens
    return output.miss


def test_a_clock_in_the_system_text(llm: LLM) -> None:
    first = chat(llm, RULES + "It is 10:15.", "Which ships are in?")
    assert (first.reason, first.part, first.cached_text) == (Reason.COLD, None, "")
    assert first.prompt_text.startswith("<|im_start|>system\nYou answer")
    assert first.lost_seconds is not None
    assert first.lost_seconds > 0
    second = chat(llm, RULES + "It is 10:48.", "Which ships are in?")
    assert second.reason == Reason.DIVERGED
    assert second.part == "system text"
    assert second.before.endswith("It is 10:")
    assert second.prompt_text.startswith("48.<|im_end|>\n<|im_start|>user")
    assert second.cached_text.startswith("15.<|im_end|>\n<|im_start|>user")
    assert second.lost_seconds is not None
    assert second.lost_seconds > 0


def test_another_question(llm: LLM) -> None:
    chat(llm, RULES, "Which ships are in?")
    miss = chat(llm, RULES, "Which ships are out?")
    assert (miss.reason, miss.part) == (Reason.DIVERGED, "message 2 (user)")
    longer = chat(llm, RULES, "Which ships are in? And out?")
    assert (longer.reason, longer.part) == (Reason.DIVERGED, "message 2 (user)")


def test_other_prompts_have_no_parts(llm: LLM) -> None:
    for number in ("one", "two"):
        (output,) = llm.generate(RULES + number + " more of it.", PARAMS)
    assert output.miss is not None
    assert (output.miss.part, output.miss.cached_text[:4]) == (None, " one")
    assert len(output.miss.cached) <= CACHED_TOKENS
    assert output.miss.before.endswith("its people.")
    (again,) = llm.generate(RULES + "two more of it.", PARAMS)
    assert again.miss is None


def test_counters_by_reason(llm: LLM) -> None:
    lost = [
        chat(llm, RULES, "Which ships are in?"),
        chat(llm, RULES, "Which ships are out?"),
        chat(llm, RULES, "Which ships are out?", cache_salt="tenant"),
    ]
    counters = llm.engine.counters
    reasons = [Reason.COLD, Reason.DIVERGED, Reason.NAMESPACE]
    assert [miss.reason for miss in lost] == reasons
    assert {reason for reason, count in counters.misses.items() if count} == set(reasons)
    for miss in lost:
        assert counters.lost_tokens[miss.reason] == miss.lost_tokens
    assert counters.misses[Reason.EVICTED] == 0


def test_reading_one_miss_does_not_wait_for_another() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slowly() -> Words:
        inside.set()
        go_on.wait(30)
        return Words(part="message 1 (user)")

    slow = Miss(Reason.COLD, 5, read=slowly)
    reading = threading.Thread(target=lambda: slow.words)
    reading.start()
    inside.wait(30)
    found: list[str | None] = []
    other = threading.Thread(
        target=lambda: found.append(Miss(Reason.COLD, 7, read=lambda: Words(part="template")).part)
    )
    other.start()
    other.join(10)
    assert found == ["template"]
    go_on.set()
    reading.join()
