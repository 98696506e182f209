"""One LLM in several threads, behind a fork, within its own callbacks, and under signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.threaded import AsyncEngine
from kvreuse.errors import EngineUseError
from kvreuse.llm import LLM

from .engine.paging import forget, make_engine, pages_in_use, prompt_of

PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)
PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((5, 40, 70, 100, 33, 64, 90, 12))]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(tiny_model, kv_cache_memory="2MiB", max_model_len=256, threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[tuple[int, ...]]:
    """What each prompt is answered by itself."""
    return [llm.generate(prompt, PARAMS)[0].outputs[0].token_ids for prompt in PROMPTS]


def settled(llm: LLM) -> None:
    llm.engine.check()
    assert pages_in_use(llm.engine) == 0
    assert not llm.engine.has_unfinished


def test_threads_share_one_llm(llm: LLM, alone: list[tuple[int, ...]]) -> None:
    got: dict[int, list[tuple[int, ...]]] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            order = random.Random(number).sample(range(len(PROMPTS)), len(PROMPTS))
            answers = {}
            for index in order[:4]:
                answers[index] = llm.generate(PROMPTS[index], PARAMS)[0].outputs[0].token_ids
            for index in order[4:]:
                deltas = list(llm.stream(PROMPTS[index], PARAMS))
                answers[index] = tuple(token for one in deltas for token in one.token_ids)
            got[number] = [answers[index] for index in range(len(PROMPTS))]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert list(got.values()) == [alone] * 6
    settled(llm)


class AlarmError(Exception):
    """What the signal handler raises."""


@pytest.mark.parametrize("use", ["generate", "stream"])
def test_a_signal_at_any_moment_costs_no_page(
    llm: LLM, alone: list[tuple[int, ...]], use: str
) -> None:
    """A handler that raises, as Ctrl-C does, 60 times at random moments."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise AlarmError

    order = random.Random(0)
    before = signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    try:
        for _ in range(60):
            forget(llm.cache)
            try:
                signal.setitimer(signal.ITIMER_REAL, order.uniform(0.0002, 0.03))
                if use == "generate":
                    llm.generate(PROMPTS, PARAMS)
                else:
                    for _ in llm.stream(PROMPTS[3], PARAMS):
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except AlarmError:
                interrupted += 1
            llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
            settled(llm)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10
    again = llm.generate(PROMPTS, PARAMS)
    assert [one.outputs[0].token_ids for one in again] == alone


def test_a_callback_may_use_the_llm(llm: LLM, alone: list[tuple[int, ...]]) -> None:
    within: list[tuple[int, ...]] = []

    def progress(done: int, total: int) -> None:
        within.append(llm.generate(PROMPTS[1], PARAMS)[0].outputs[0].token_ids)

    outputs = llm.generate(PROMPTS[:3], PARAMS, progress=progress)
    assert [one.outputs[0].token_ids for one in outputs] == alone[:3]
    assert within == [alone[1]] * 3
    settled(llm)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_behind_a_fork_it_is_refused(llm: LLM) -> None:
    llm.generate(PROMPTS[0], PARAMS)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate(PROMPTS[0], PARAMS)
        except EngineUseError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert b"before this process was forked" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    settled(llm)


def test_a_sink_makes_no_step() -> None:
    engine, _, _ = make_engine()
    refused: list[str] = []

    def sink(delta: Delta) -> None:
        try:
            engine.step()
        except EngineUseError as error:
            refused.append(str(error))

    engine.submit(Ask(prompt_of(20), SamplingParams(temperature=0, max_tokens=2)), sink)
    while engine.has_unfinished:
        engine.step()
    assert len(refused) == 2
    assert "a step is under way" in refused[0]
    engine.check()


def test_an_engine_refuses_a_second_thread() -> None:
    engine, runner, _ = make_engine()
    inside, leave = threading.Event(), threading.Event()
    plain = runner.run

    def slow(batch: object) -> object:
        inside.set()
        assert leave.wait(30)
        return plain(batch)  # type: ignore[arg-type]

    runner.run = slow  # type: ignore[method-assign, assignment]
    engine.submit(Ask(prompt_of(20), SamplingParams(temperature=0, max_tokens=1)))
    thread = threading.Thread(target=engine.step)
    thread.start()
    assert inside.wait(30)
    for use in (engine.step, lambda: engine.submit(Ask([1])), lambda: engine.abort("0")):
        with pytest.raises(EngineUseError, match="another thread is using it"):
            use()
    leave.set()
    thread.join()
    engine.check()


async def _with_async(llm: LLM) -> None:
    async with AsyncEngine(llm.engine) as engine:
        stream = engine.stream(Ask(PROMPTS[0], PARAMS))
        await anext(stream)
        with pytest.raises(EngineUseError, match="belongs to an AsyncEngine"):
            llm.generate(PROMPTS[1], PARAMS)
        async for _ in stream:
            pass


def test_an_engine_that_an_async_engine_has_is_its_alone(llm: LLM) -> None:
    asyncio.run(_with_async(llm))
    llm.generate(PROMPTS[0], PARAMS)
    settled(llm)


@pytest.mark.parametrize("end", ["", "llm.close()", "del llm", "del stream"])
def test_a_program_that_ends_meanwhile_ends_quietly(tiny_model: Path, end: str) -> None:
    """A stream is open, and its request under way: no message, no crash, no wait."""
    program = (
        "from kvreuse import LLM, SamplingParams\n"
        f"llm = LLM({str(tiny_model)!r}, kv_cache_memory='8MiB', threads=1)\n"
        "params = SamplingParams(max_tokens=500, ignore_eos=True)\n"
        "stream = llm.stream({'prompt_token_ids': [1, 2, 3]}, params)\n"
        "next(stream)\n"
        f"{end}\n"
        "print('done')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
