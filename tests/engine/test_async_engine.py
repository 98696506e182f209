"""AsyncEngine: streams, aborts, cancellations and failures, on an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.engine import Engine
from kvreuse.engine.threaded import AsyncEngine
from kvreuse.errors import EngineClosedError, ModelFileError, RequestError
from kvreuse.ops.batch import Float32Array

from .paging import VOCAB, greedy, hashed_logits, make_engine, pages_in_use, prompt_of

GREEDY = SamplingParams(temperature=0, max_tokens=8)
LONG = dataclasses.replace(GREEDY, max_tokens=400)


def run(work: Coroutine[Any, Any, None], engine: Engine) -> None:
    """Run ``work``; check that no request is left afterwards."""
    asyncio.run(asyncio.wait_for(work, 30))
    engine.check()
    assert pages_in_use(engine) == 0
    assert not engine.has_unfinished


async def answer(engine: AsyncEngine, prompt: list[int], **options: Any) -> list[int]:
    """The tokens of one stream."""
    tokens: list[int] = []
    async for delta in engine.stream(Ask(prompt, GREEDY, **options)):
        tokens += delta.token_ids
    return tokens


def test_many_streams_at_once() -> None:
    inner, _, _ = make_engine(pages=128)

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            prompts = [prompt_of(20 + i, i % 3) for i in range(20)]
            answers = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
            assert answers == [greedy(prompt, 8) for prompt in prompts]

    run(work(), inner)


def test_what_cannot_be_served_is_refused_and_hurts_nobody() -> None:
    inner, _, _ = make_engine()

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            other = asyncio.create_task(answer(engine, prompt_of(30)))
            with pytest.raises(RequestError, match="the prompt is empty"):
                await answer(engine, [])
            assert await other == greedy(prompt_of(30), 8)

    run(work(), inner)


def test_a_stream_that_nobody_reads_any_more_is_aborted() -> None:
    inner, _, _ = make_engine()

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            async with aclosing(engine.stream(Ask(prompt_of(20), LONG))) as stream:
                await anext(stream)
            reader = asyncio.create_task(answer(engine, prompt_of(300, 1)))
            await asyncio.sleep(0)  # its order is queued, but not carried out yet
            reader.cancel()
            assert await answer(engine, prompt_of(20)) == greedy(prompt_of(20), 8)
            assert inner.counters.aborted == 2

    run(work(), inner)


def test_abort_ends_the_stream_with_what_there_is() -> None:
    inner, _, _ = make_engine()

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            tokens: list[int] = []
            async for delta in engine.stream(Ask(prompt_of(20), LONG, request_id="mine")):
                tokens += delta.token_ids
                if len(tokens) == 3:
                    await engine.abort("mine")
            assert delta.output is not None
            assert delta.output.outputs[0].finish_reason == "abort"
            assert list(delta.output.outputs[0].token_ids) == tokens
            assert tokens == greedy(prompt_of(20), len(tokens))
            await engine.abort("mine")

    run(work(), inner)


def test_a_step_that_fails_ends_the_streams_and_not_the_engine() -> None:
    failing = True

    def logits_of(tokens: tuple[int, ...]) -> Float32Array:
        if failing:
            raise ZeroDivisionError
        return hashed_logits(tokens)

    inner, _, _ = make_engine(logits_of=logits_of)

    async def work() -> None:
        nonlocal failing
        async with AsyncEngine(inner) as engine:
            failed = await asyncio.gather(
                *(answer(engine, prompt_of(20, seed)) for seed in range(3)),
                return_exceptions=True,
            )
            assert [type(error) for error in failed] == [ZeroDivisionError] * 3
            failing = False
            assert await answer(engine, prompt_of(20)) == greedy(prompt_of(20), 8)

    run(work(), inner)


@pytest.mark.parametrize("where", ["in the forward pass", "where a token is chosen"])
def test_a_request_that_fails_ends_alone(where: str) -> None:
    bad = prompt_of(20, 7)

    def logits_of(tokens: tuple[int, ...]) -> Float32Array:
        if tokens[: len(bad)] != tuple(bad) or len(tokens) < len(bad) + 2:
            return hashed_logits(tokens)
        if where == "in the forward pass":
            raise ZeroDivisionError
        return np.full(VOCAB, np.nan, dtype=np.float32)

    inner, _, _ = make_engine(pages=128, logits_of=logits_of)
    ended: list[RequestOutput] = []

    async def work() -> None:
        async with AsyncEngine(inner, on_end=ended.append) as engine:
            prompts = [prompt_of(30 + i, i) for i in range(7)] + [bad] + [prompt_of(40, 9)]
            answers = await asyncio.gather(
                *(answer(engine, prompt) for prompt in prompts), return_exceptions=True
            )
            [failed] = [one for one in answers if isinstance(one, Exception)]
            assert failed is answers[7]
            for prompt, one in zip(prompts, answers, strict=True):
                assert one is failed or one == greedy(prompt, 8)
            assert await answer(engine, prompts[0]) == answers[0]

    run(work(), inner)
    reasons = [output.outputs[0].finish_reason for output in ended]
    assert sorted(reasons) == ["abort", *["length"] * 9]


def test_the_answer_alone_is_the_same_as_the_stream() -> None:
    inner, _, _ = make_engine()
    counts: list[int] = []

    async def work() -> None:
        async with AsyncEngine(inner, on_step=lambda deltas: counts.append(len(deltas))) as engine:
            output = await engine.answer(Ask(prompt_of(20), GREEDY))
            assert list(output.outputs[0].token_ids) == greedy(prompt_of(20), 8)
            reader = asyncio.create_task(engine.answer(Ask(prompt_of(20, 3), LONG)))
            while inner.num_running == 0:
                await asyncio.sleep(0.001)
            reader.cancel()
            assert await answer(engine, prompt_of(20)) == greedy(prompt_of(20), 8)
            assert inner.counters.aborted == 1
            assert engine.alive
            assert engine.stalled == 0
        assert not engine.alive

    run(work(), inner)
    assert sum(counts) >= 16


def test_the_first_delta_tells_what_was_cached() -> None:
    inner, _, _ = make_engine()

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            prompt = prompt_of(70)
            await engine.answer(Ask(prompt, GREEDY))
            params = dataclasses.replace(GREEDY, n=2, logprobs=1)
            deltas = [delta async for delta in engine.stream(Ask([*prompt[:-1], 5], params))]
            first, *others = deltas
            assert first.num_cached_tokens == 69
            assert first.miss is None
            assert {one.num_cached_tokens for one in others} == {None}
            assert first.logprobs is not None
            assert next(iter(first.logprobs)) == first.token_ids[0]

    run(work(), inner)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner, _, _ = make_engine()

    def die(among: object) -> None:
        raise SystemExit

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            reader = asyncio.create_task(engine.answer(Ask(prompt_of(20), LONG)))
            while inner.num_running == 0:
                await asyncio.sleep(0.001)
            monkeypatch.setattr(inner, "step", die)
            with pytest.raises(EngineClosedError):
                await reader
            assert not engine.alive
            with pytest.raises(EngineClosedError):
                await engine.answer(Ask(prompt_of(20), GREEDY))

    run(work(), inner)


def test_closing_ends_what_is_being_served() -> None:
    inner, _, _ = make_engine()

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            stream = engine.stream(Ask(prompt_of(20), LONG))
            await anext(stream)
        with pytest.raises(EngineClosedError):
            async for _ in stream:
                pass
        with pytest.raises(EngineClosedError):
            await answer(engine, prompt_of(20))

    run(work(), inner)


def fails_on_token_99(tokens: tuple[int, ...]) -> Float32Array:
    """NaN logits for a sequence that starts with 99 and has eight tokens."""
    logits = hashed_logits(tokens)
    if tokens[0] == 99 and len(tokens) >= 8:
        logits[:] = np.nan
    return logits


@pytest.mark.parametrize("aborts", [False, True])
def test_who_ended_in_a_step_that_failed_gets_its_answer(aborts: bool) -> None:
    """The last delta of one, and the failure of the only other request, in the same step."""
    inner, _, _ = make_engine(logits_of=fails_on_token_99)
    params = dataclasses.replace(GREEDY, max_tokens=4)

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            one = asyncio.create_task(engine.answer(Ask([1, 2, 3, 4, 5], params, request_id="one")))
            other = asyncio.create_task(engine.answer(Ask([99, 2, 3, 4, 5], params)))
            with pytest.raises(ModelFileError):
                await other
            if aborts:
                await engine.abort("one")
            assert (await one).outputs[0].token_ids == tuple(greedy([1, 2, 3, 4, 5], 4))

    run(work(), inner)


def test_a_step_that_fails_before_it_runs_ends_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller waits for ever, and later requests are served."""
    inner, _, _ = make_engine()

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    async def work() -> None:
        async with AsyncEngine(inner) as engine:
            for name in ("plan", "begin"):
                with monkeypatch.context() as patch:
                    patch.setattr(inner.scheduler, name, broken)
                    answers = [engine.answer(Ask(prompt_of(9, seed), GREEDY)) for seed in range(3)]
                    errors = await asyncio.gather(*answers, return_exceptions=True)
                    assert [str(error) for error in errors] == ["broken"] * 3
            assert await answer(engine, prompt_of(9)) == greedy(prompt_of(9), 8)

    run(work(), inner)


def test_a_number_that_is_somebody_s_id_is_not_given_again() -> None:
    inner, _, _ = make_engine()
    for given in ("0", None, "2", None, None):
        inner.submit(Ask([1, 2, 3], GREEDY, request_id=given))
    assert inner.num_waiting == 5
