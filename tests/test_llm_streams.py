"""Streams of the offline face: pieces of an answer, closed or dropped at any moment."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvreuse import LLM, SamplingParams
from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta
from kvreuse.errors import RequestError

from .engine.paging import forget, pages_in_use
from .test_llm import CHAT, FRANCE, GREEDY


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(model_path, kv_cache_memory="128MiB", threads=1) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _no_page_is_left(llm: LLM) -> Iterator[None]:
    """Each test starts with an empty cache, and leaves nothing in use."""
    yield
    llm.engine.check()
    assert pages_in_use(llm.engine) == 0
    assert not llm.engine.has_unfinished
    forget(llm.cache)


def test_a_stream_is_the_answer_in_pieces(llm: LLM) -> None:
    prompt = llm.chat_prompt(CHAT)
    deltas = list(llm.stream(prompt, GREEDY))
    (whole,) = llm.chat(CHAT, GREEDY)
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    assert deltas[-1].output is not None
    assert deltas[-1].output.outputs == whole.outputs
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_a_stream_of_a_closed_llm_ends_in_an_error(tiny_model: Path) -> None:
    llm = LLM(tiny_model, kv_cache_memory="8MiB", threads=1)
    stream = llm.stream({"prompt_token_ids": [1, 2, 3]}, GREEDY)
    llm.close()
    with pytest.raises(RequestError, match="nothing is being served any more"):
        next(stream)


def test_closing_or_dropping_a_stream_aborts_it(llm: LLM) -> None:
    closed, dropped = llm.stream(FRANCE, GREEDY), llm.stream(FRANCE, GREEDY)
    next(closed)
    next(dropped)
    assert pages_in_use(llm.engine) == 2
    closed.close()
    closed.close()
    assert list(closed) == []
    assert pages_in_use(llm.engine) == 1
    del dropped
    gc.collect()
    llm.generate("one more", GREEDY)  # aborts it before its first step
    assert pages_in_use(llm.engine) == 0


def test_a_stream_may_be_dropped_within_a_step(llm: LLM) -> None:
    """The garbage collector comes at any moment: nothing is aborted while a step is under way."""
    streams = [llm.stream(FRANCE, GREEDY)]
    aborted: list[int] = []

    def drop(delta: Delta) -> None:
        if streams:
            streams.pop()
            gc.collect()
            aborted.append(llm.engine.counters.aborted)

    before = llm.engine.counters.aborted
    handle = llm.engine.submit(Ask([1, 2, 3], GREEDY), drop)
    llm.generate(FRANCE, GREEDY)
    handle.abort()
    assert aborted == [before]
    assert pages_in_use(llm.engine) == 0


def test_a_stream_closed_early_is_remembered_for_the_next_turn(llm: LLM) -> None:
    forget(llm.cache)
    hot = SamplingParams(temperature=1.6, seed=3, max_tokens=40)
    stream = llm.stream(llm.chat_prompt(CHAT), hot)
    deltas = [next(stream) for _ in range(12)]
    ids = [token for delta in deltas for token in delta.token_ids]
    stream.close()
    said = llm.tokenizer.decode(ids, continuation=True)
    (after,) = llm.chat([*CHAT, {"role": "assistant", "content": said}, *CHAT], GREEDY)
    prompt = llm.chat_prompt(CHAT)
    kept = [*prompt.token_ids, *ids]
    assert list(after.prompt_token_ids[: len(kept)]) == kept


def test_a_stream_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.stream("")


def test_a_streamed_turn_is_remembered_too(llm: LLM) -> None:
    forget(llm.cache)
    *_, last = llm.stream(llm.chat_prompt(CHAT), GREEDY)
    assert last.output is not None
    answer = {"role": "assistant", "content": last.output.outputs[0].text}
    (after,) = llm.chat([*CHAT, answer, *CHAT], GREEDY)
    generated = len(last.output.outputs[0].token_ids)
    assert after.num_cached_tokens >= len(last.output.prompt_token_ids) + generated - 1
