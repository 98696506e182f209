"""LLM with the real model: every way to ask gives the same answer, and no page is left behind."""

from __future__ import annotations

import dataclasses
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvreuse import LLM, SamplingParams
from kvreuse.api.ask import Ask
from kvreuse.api.miss import Reason
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.engine import Engine
from kvreuse.errors import ConfigError, ModelFileError, RequestError
from kvreuse.text.chats import Chats

from .engine.paging import finish, forget, pages_in_use, resident_bytes

GREEDY = SamplingParams(temperature=0, max_tokens=12)
FRANCE = "The capital of France is"
CHAT = [{"role": "user", "content": "Say hello."}]
MIXED = [
    FRANCE,
    "Once upon a time, in a village by the sea, there lived",
    "1, 2, 3, 4,",
    "def fibonacci(n):\n",
    "x",
    "A list of the planets, from the sun outwards: Mercury, Venus, Earth, Mars, Jupiter, " * 3,
]
MIXED_PARAMS = [
    dataclasses.replace(GREEDY, max_tokens=5 + 3 * index) if index % 2 else seeded
    for index, seeded in enumerate(
        SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=10, ignore_eos=True)
        for seed in range(len(MIXED))
    )
]


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    """The real model with a pool of 182 pages."""
    with LLM(model_path, kv_cache_memory="128MiB", threads=1) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _no_page_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test every page is free, or evictable, and nothing is being served.

    Each starts with an empty cache.
    """
    yield
    if "llm" in request.fixturenames:
        loaded: LLM = request.getfixturevalue("llm")
        loaded.engine.check()
        assert pages_in_use(loaded.engine) == 0
        assert not loaded.engine.has_unfinished
        forget(loaded.cache)
        assert loaded.pool.num_used == 0


def ids_of(output: RequestOutput) -> tuple[int, ...]:
    """The tokens of the one answer."""
    return output.outputs[0].token_ids


def test_it_says_how_exactly_the_weights_were_loaded(llm: LLM) -> None:
    assert [(entry.type, entry.tensors, entry.error) for entry in llm.repacked] == [
        ("Q4_1", 210, 0.0),
        ("Q8_0", 1, 0.0),
    ]


def test_the_model_knows_a_capital(llm: LLM) -> None:
    (output,) = llm.generate(FRANCE, GREEDY)
    assert output.outputs[0].text.startswith(" Paris")
    assert output.prompt == FRANCE
    assert list(output.prompt_token_ids) == llm.tokenizer.encode(FRANCE)
    assert output.finished


def test_every_form_of_a_prompt_gives_the_same_answer(llm: LLM) -> None:
    ids = llm.tokenizer.encode(FRANCE)
    alone = ids_of(llm.generate(FRANCE, GREEDY)[0])
    every: Any = [FRANCE, {"prompt": FRANCE}, {"prompt_token_ids": ids}, ids]
    assert [ids_of(output) for output in llm.generate(every, GREEDY)] == [alone] * 4
    for one in every:
        assert ids_of(llm.generate(one, [GREEDY])[0]) == alone
    assert llm.generate([], GREEDY) == []


def test_what_is_cached_is_told_and_salts_keep_apart(llm: LLM) -> None:
    long = MIXED[-1]
    total = len(llm.tokenizer.encode(long))
    prompts: list[Any] = [
        long,
        long,
        {"prompt": long, "cache_salt": "a"},
        {"prompt_token_ids": llm.tokenizer.encode(long), "cache_salt": "a"},
        {"prompt": long, "cache_salt": "b"},
    ]
    outputs = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [output.num_cached_tokens for output in outputs] == [0, total - 1, 0, total - 1, 0]
    assert len({ids_of(output) for output in outputs}) == 1
    assert outputs[0].miss is not None
    assert outputs[0].miss.reason == Reason.COLD
    chats = [llm.chat(CHAT, GREEDY, cache_salt=salt)[0] for salt in (None, "a", "a")]
    assert [chat.num_cached_tokens > 0 for chat in chats] == [False, False, True]
    refused: list[Any] = [{"prompt": long, "cache_salt": salt} for salt in ("", 5)]
    for prompt in refused:
        with pytest.raises(RequestError, match="cache_salt must be a text, and not empty"):
            llm.generate(prompt, GREEDY)


def test_many_answers_to_one_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate(FRANCE, params)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    for index, answer in enumerate(output.outputs):
        (alone,) = llm.generate(FRANCE, dataclasses.replace(params, n=1, seed=5 + index))
        assert answer.token_ids == ids_of(alone)
        assert answer.text == alone.outputs[0].text
    deltas = list(llm.stream(FRANCE, params))
    for answer in output.outputs:
        mine = [delta for delta in deltas if delta.index == answer.index]
        assert "".join(delta.text for delta in mine) == answer.text
        assert [delta.finish_reason for delta in mine] == [None] * 7 + ["length"]
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_the_batch_changes_no_answer(llm: LLM) -> None:
    together = llm.generate(MIXED, MIXED_PARAMS)
    assert [output.prompt for output in together] == MIXED
    for prompt, params, output in zip(MIXED, MIXED_PARAMS, together, strict=True):
        (alone,) = llm.generate(prompt, params)
        assert output.outputs == alone.outputs
    backwards = llm.generate(MIXED[::-1], MIXED_PARAMS[::-1])
    assert [output.outputs for output in backwards[::-1]] == [o.outputs for o in together]


@pytest.mark.parametrize(("budget", "seats"), [(1, 1), (7, 3), (33, 6), (512, 2)])
def test_budget_and_seats_change_no_answer(llm: LLM, budget: int, seats: int) -> None:
    expected = [ids_of(output) for output in llm.generate(MIXED, MIXED_PARAMS)]
    engine = Engine(
        llm.runner,
        llm.cache,
        llm.tokenizer,
        vocab_size=llm.shape.vocab_size,
        max_model_len=1024,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
    )
    for index, (prompt, params) in enumerate(zip(MIXED, MIXED_PARAMS, strict=True)):
        engine.submit(Ask(llm.tokenizer.encode(prompt), params, request_id=str(index)))
    outputs = finish(engine)
    assert [ids_of(outputs[str(index)]) for index in range(len(MIXED))] == expected


def test_unwritten_rows_of_a_page_never_count(llm: LLM) -> None:
    expected = [ids_of(output) for output in llm.generate(MIXED, MIXED_PARAMS)]
    forget(llm.cache)
    llm.pool.data.view(np.uint16)[:] = 0x7FC0  # NaN
    assert [ids_of(output) for output in llm.generate(MIXED, MIXED_PARAMS)] == expected


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    (output,) = llm.chat(CHAT, GREEDY)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\n")
    assert "Say hello." in output.prompt
    assert llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False) == output.prompt
    both = llm.chat([CHAT, [{"role": "system", "content": "Be brief."}, *CHAT]], GREEDY)
    assert both[0].outputs == output.outputs
    assert "Be brief." in (both[1].prompt or "")


def test_a_chat_needs_a_template(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chats", Chats(None, llm.tokenizer))
    with pytest.raises(RequestError, match="the model has no chat template"):
        llm.chat(CHAT)


def test_streams_and_batches_may_be_interleaved(llm: LLM) -> None:
    expected = [ids_of(output) for output in llm.generate(MIXED[:3], GREEDY)]
    first, second = (llm.stream(prompt, GREEDY) for prompt in MIXED[:2])
    got: list[list[Delta]] = [[next(first)], []]
    (batch,) = llm.generate(MIXED[2], GREEDY)
    got[1] += list(second)
    got[0] += list(first)
    streamed = [tuple(t for delta in deltas for t in delta.token_ids) for deltas in got]
    assert [*streamed, ids_of(batch)] == expected


def test_a_callback_that_raises_costs_nobody_else_a_token(llm: LLM) -> None:
    expected = ids_of(llm.generate(MIXED[0], GREEDY)[0])
    stream = llm.stream(MIXED[0], GREEDY)

    def broken(*_: int) -> None:
        raise ZeroDivisionError

    first = dataclasses.replace(GREEDY, max_tokens=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            llm.generate(MIXED[1], first, progress=broken)
    assert tuple(token for delta in stream for token in delta.token_ids) == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([FRANCE, ""], "the prompt is empty"),
        ([FRANCE, {"prompt_token_ids": [49152]}], "token id 49152 is not in the vocabulary"),
        ([FRANCE, {"prompt_token_ids": [1] * 9000}], "has 9000 tokens, .* may have 8192"),
        ([FRANCE, {"prompt_token_ids": [1] * 6000}], "need 188 pages of 32, .* has 182"),
        ([FRANCE, "\ud800"], "not valid Unicode"),
    ],
)
def test_one_bad_prompt_refuses_all(llm: LLM, prompts: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts, GREEDY)


def test_progress_is_told_and_may_interrupt(llm: LLM) -> None:
    told: list[tuple[int, int]] = []
    llm.generate(MIXED[:3], GREEDY, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(MIXED, MIXED_PARAMS, progress=interrupt)


def test_a_bar_only_where_it_is_asked_for(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(MIXED[:3], GREEDY)
    llm.chat([CHAT, CHAT], GREEDY, use_tqdm=False)
    assert capfd.readouterr().err == ""
    llm.generate(MIXED[:3], GREEDY, use_tqdm=True)
    line = capfd.readouterr().err
    assert (line.count("\n"), line[-1]) == (1, "\n")
    assert re.search(r"Prompts .* 3/3 [0-9,]+ in, [0-9,]+ out tok/s, \d+% cached", line)


def test_the_next_turn_reuses_the_whole_conversation(llm: LLM) -> None:
    """Also where the answer, encoded as text, would have other tokens than were generated."""
    forget(llm.cache)
    params = SamplingParams(temperature=1.8, seed=11, max_tokens=60)
    other = 0
    messages = [*CHAT]
    for turn in range(4):
        (output,) = llm.chat(messages, params)
        ids = [*output.prompt_token_ids, *ids_of(output)]
        answer = output.outputs[0]
        messages += [{"role": "assistant", "content": answer.text}]
        messages += [{"role": "user", "content": f"Say more, {turn}."}]
        (after,) = llm.chat(messages, GREEDY)
        kept = len(ids) - (answer.finish_reason == "stop")
        assert after.prompt_token_ids[:kept] == tuple(ids[:kept])
        assert after.num_cached_tokens >= len(ids) - 1
        text = llm.tokenizer.decode(after.prompt_token_ids, skip_special_tokens=False)
        assert text == after.prompt
        natural = llm.tokenizer.encode(text, add_special_tokens=False)
        other += tuple(natural) != after.prompt_token_ids
    assert other > 0


def test_a_step_that_fails_gives_back_its_pages(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate(FRANCE, GREEDY)[0].outputs
    monkeypatch.setattr(type(llm.runner), "run", lambda runner, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        llm.generate(MIXED, GREEDY)
    monkeypatch.undo()
    assert llm.generate(FRANCE, GREEDY)[0].outputs == expected


def test_two_thousand_tokens_leave_no_trace(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2050, ignore_eos=True)
    llm.pool.data[:] = 0  # pages may be touched; nothing else
    stream = llm.stream(FRANCE, params)
    for _ in range(40):
        next(stream)
    gc.collect()
    blocks, resident = sys.getallocatedblocks(), resident_bytes()
    for _ in range(2000):
        next(stream)
    gc.collect()
    assert sys.getallocatedblocks() - blocks <= 2000
    assert resident_bytes() - resident < 1 << 20
    stream.close()


def test_resident_memory_is_weights_and_pages_and_little_else(model_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from kvreuse import LLM, SamplingParams
llm = LLM(sys.argv[1], kv_cache_memory="1GiB", threads=1)
llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
touched = llm.pool.peak_used * llm.pool.layout.page_bytes
resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
print(resident - llm.runner.weights.nbytes - touched)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, model_path], check=True, capture_output=True, text=True
    )
    assert 0 < int(done.stdout) <= 150 << 20


def test_closing_gives_the_memory_back(model_path: Path) -> None:
    llm = LLM(model_path, kv_cache_memory="64MiB", threads=1)
    stream = llm.stream(FRANCE, GREEDY)
    next(stream)
    llm.pool.data[:] = 0
    gc.collect()
    before = resident_bytes()
    llm.close()
    llm.close()
    gc.collect()
    assert before - resident_bytes() > (64 << 20) * 9 // 10
    with pytest.raises(RequestError, match="the engine is closed"):
        llm.generate(FRANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_memory": "700KiB"}, "a KV cache of 700 KiB holds no page: one takes 720 KiB"),
        ({"max_model_len": 8193}, "--max-model-len is 8193, but the model was made for 8192"),
        (
            {"kv_cache_memory": "10MiB", "max_model_len": 500},
            r"--max-model-len 500 needs 16 pages \(11.2 MiB\), but the KV cache has 14",
        ),
        ({"page_size": 40}, "--page-size must be a positive multiple of 32 tokens, got 40"),
        ({"kv_cache_memory": "1000TiB"}, "asks for 1000 TiB, but .* are available"),
    ],
)
def test_settings_that_cannot_be(model_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(model_path, **options)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        LLM(tmp_path / "none.gguf")
    with pytest.raises(TypeError, match="no_such_option"):
        LLM(tmp_path / "none.gguf", no_such_option=1)
