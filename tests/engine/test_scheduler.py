"""Scheduler: admission, sharing in flight, preemption, and the pages left behind."""

from __future__ import annotations

import dataclasses
import gc
import random
import sys
import time

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.retention import Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.engine import Engine
from kvreuse.engine.waiting import HEAD_START, MAX_PRIORITY, PRIORITY_STEP
from kvreuse.errors import ModelFileError
from kvreuse.ops.batch import Float32Array

from .paging import (
    VOCAB,
    check,
    finish,
    greedy,
    hashed_logits,
    make_engine,
    pages_in_use,
    prompt_of,
    resident_bytes,
)

GREEDY = SamplingParams(temperature=0, max_tokens=8)
ONE = dataclasses.replace(GREEDY, max_tokens=1)


def test_eight_identical_prompts_are_computed_once() -> None:
    engine, runner, _ = make_engine(pages=64)
    for _ in range(8):
        engine.submit(Ask(prompt_of(200), GREEDY))
    engine.step()
    assert runner.rows == [[200]]
    assert (engine.num_running, engine.num_waiting) == (1, 7)
    engine.step()
    assert runner.rows[1] == [1] + [200 % 32] * 7  # 6 full pages are there
    outputs = finish(engine)
    for output in outputs.values():
        assert list(output.outputs[0].token_ids) == greedy(prompt_of(200), 8)
    assert [output.num_cached_tokens for output in outputs.values()] == [0] + [192] * 7


def test_a_shared_prefix_is_computed_once_and_by_chunks() -> None:
    engine, _, _ = make_engine(pages=256, max_num_batched_tokens=100)
    for seed in range(32):
        engine.submit(Ask(prompt_of(320) + prompt_of(16, seed + 1), ONE))
    finish(engine)
    assert 320 + 32 * 15 < engine.counters.computed_tokens <= 320 + 32 * 16


def test_shared_prefixes_take_their_pages_once() -> None:
    most = {}
    for caching in (True, False):
        engine, _, _ = make_engine(pages=64, enable_prefix_caching=caching)
        for seed in range(8):
            params = dataclasses.replace(GREEDY, max_tokens=20)
            engine.submit(Ask(prompt_of(96) + prompt_of(32, seed + 1), params))
        most[caching] = 0
        while engine.has_unfinished:
            engine.step()
            most[caching] = max(most[caching], pages_in_use(engine))
    assert most == {True: 3 + 8 * 2, False: 8 * 5}


def test_with_caching_off_nobody_waits_for_anybody() -> None:
    engine, runner, _ = make_engine(enable_prefix_caching=False)
    for _ in range(3):
        engine.submit(Ask(prompt_of(40), GREEDY))
    engine.step()
    assert runner.rows == [[40, 40, 40]]


def test_salts_are_not_shared_in_flight() -> None:
    engine, runner, _ = make_engine()
    for salt in ("a", "b", None, "a"):
        engine.submit(Ask(prompt_of(40), GREEDY, cache_salt=salt))
    engine.step()
    assert runner.rows == [[40, 40, 40]]
    outputs = finish(engine)
    assert [outputs[request].num_cached_tokens for request in "0123"] == [0, 0, 0, 32]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_another_takes_over_when_the_leader_is_aborted(steps: int) -> None:
    engine, runner, _ = make_engine(max_num_batched_tokens=64)
    for _ in range(4):
        engine.submit(Ask(prompt_of(250), GREEDY))
    for _ in range(steps):
        engine.step()
    assert runner.rows == [[64]] * steps
    engine.abort("0")
    engine.step()
    assert runner.rows[-1] == [min(64, 250 - 64 * steps)]  # goes on where the leader was
    outputs = finish(engine)
    for request in "123":
        assert list(outputs[request].outputs[0].token_ids) == greedy(prompt_of(250), 8)
    assert engine.counters.computed_tokens <= 250 + 2 * (250 % 32) + 3 * 7


def test_a_step_that_is_large_enough_starts_no_other_prompt() -> None:
    engine, runner, _ = make_engine()
    for seed, length in enumerate((300, 100, 100, 20)):
        engine.submit(Ask(prompt_of(length, seed), GREEDY))
    for _ in range(3):
        engine.step()
    assert runner.rows == [[300], [1, 100, 100], [1, 1, 1, 20]]


def test_saved_work_comes_first() -> None:
    engine, _, _ = make_engine(max_num_seqs=1)
    engine.submit(Ask(prompt_of(100), ONE))
    finish(engine)
    engine.submit(Ask(prompt_of(100, seed=1), ONE, request_id="cold"))
    engine.submit(Ask(prompt_of(100), ONE, request_id="warm"))
    assert list(finish(engine)) == ["warm", "cold"]


def test_nobody_waits_for_ever() -> None:
    """A cold request among ever more warm ones: it is overtaken for a while only."""
    engine, _, _ = make_engine(max_num_seqs=1)
    engine.submit(Ask(prompt_of(100), ONE))
    finish(engine)
    engine.submit(Ask(prompt_of(100, seed=1), ONE, request_id="cold"))
    overtaken = 0
    for _ in range(10 * HEAD_START):
        for _ in range(2):  # faster than they are served
            engine.submit(Ask(prompt_of(100), ONE))
        (delta,) = engine.step()
        if delta.request_id == "cold":
            break
        overtaken += 1
    assert delta.request_id == "cold"
    assert 0 < overtaken < HEAD_START


def test_lower_priorities_are_served_first() -> None:
    engine, _, _ = make_engine(max_num_seqs=1)
    for seed, priority in enumerate((0, 3, -2, -(10**9), 1)):
        retention = Retention(priority=priority)
        engine.submit(Ask(prompt_of(40, seed), ONE, retention=retention, request_id=str(priority)))
    assert list(finish(engine)) == ["-1000000000", "-2", "0", "1", "3"]


def test_the_least_important_does_not_wait_for_ever() -> None:
    engine, _, _ = make_engine(max_num_seqs=1)
    low, high = Retention(priority=10**9), Retention(priority=-(10**9))
    engine.submit(Ask(prompt_of(5), ONE, retention=low, request_id="low"))
    overtaken = 0
    for _ in range(10 * HEAD_START * MAX_PRIORITY):
        for _ in range(2):  # faster than they are served
            engine.submit(Ask(prompt_of(5, 1), ONE, retention=high))
        (delta,) = engine.step()
        if delta.request_id == "low":
            break
        overtaken += 1
    assert delta.request_id == "low"
    assert PRIORITY_STEP * MAX_PRIORITY < overtaken < HEAD_START + 2 * PRIORITY_STEP * MAX_PRIORITY


def test_a_preempted_request_has_not_ended_its_session() -> None:
    engine, _, _ = make_engine(pages=6)
    params = dataclasses.replace(GREEDY, max_tokens=100)
    for seed in range(3):
        engine.submit(Ask(prompt_of(30, seed), params, retention=Retention(session_end=True)))
    outputs = finish(engine)
    assert any(output.metrics.num_preemptions for output in outputs.values())
    for seed, output in enumerate(outputs.values()):
        assert list(output.outputs[0].token_ids) == greedy(prompt_of(30, seed), 100)


def test_the_youngest_gives_way_and_resumes() -> None:
    engine, _, pool = make_engine(pages=6)
    params = dataclasses.replace(GREEDY, max_tokens=100)
    for seed in range(3):
        engine.submit(Ask(prompt_of(30, seed), params))
    outputs = finish(engine)
    assert list(outputs) == ["0", "1", "2"]
    assert [output.metrics.num_preemptions > 0 for output in outputs.values()] == [0, 1, 1]
    assert pool.peak_used == 6
    for seed, output in enumerate(outputs.values()):
        assert list(output.outputs[0].token_ids) == greedy(prompt_of(30, seed), 100)


def test_what_was_preempted_is_reused_where_it_is_still_there() -> None:
    engine, _, _ = make_engine(pages=12, max_num_seqs=4)
    params = dataclasses.replace(GREEDY, max_tokens=70)
    for seed in range(4):
        engine.submit(Ask(prompt_of(40, seed), params))
    finish(engine)
    counters = engine.counters
    assert counters.preemptions > 0
    everything = 4 * (40 + 69)
    assert counters.computed_tokens < everything + 4 * 40


def test_what_was_forked_and_preempted_goes_on_where_it_was() -> None:
    params = SamplingParams(max_tokens=60, n=4)  # random: its generator must go on, too
    engine, _, _ = make_engine(pages=5)
    request = engine.submit(Ask(prompt_of(20), params, request_id="r")).request_id
    output = finish(engine)[request]
    assert output.metrics.num_preemptions > 0
    alone, _, _ = make_engine()
    alone.submit(Ask(prompt_of(20), params, request_id="r"))
    expected = finish(alone)[request]
    assert expected.metrics.num_preemptions == 0
    assert output.outputs == expected.outputs


def test_counters_of_what_was_forked_and_preempted_only_grow() -> None:
    engine, _, _ = make_engine(pages=10, max_model_len=320)
    params = SamplingParams(max_tokens=200, n=2, seed=1)
    engine.submit(Ask(prompt_of(10), params))
    lost = [0]
    while engine.has_unfinished:
        engine.step()
        lost.append(sum(engine.counters.lost_tokens.values()))
    assert engine.counters.preemptions > 0
    assert lost == sorted(lost)
    assert engine.counters.cached_tokens <= engine.counters.prompt_tokens


def test_abort_in_every_phase_frees_everything_within_a_step() -> None:
    """Waiting, following, prefilling, decoding, preempted, forked, finished."""
    for steps in range(30):
        engine, _, _ = make_engine(pages=7, max_num_batched_tokens=32, max_num_seqs=4)
        params = dataclasses.replace(GREEDY, max_tokens=40)
        requests = [engine.submit(Ask(prompt_of(70), params)).request_id for _ in range(2)]
        requests += [engine.submit(Ask(prompt_of(50, seed), params)).request_id for seed in (1, 2)]
        requests += [engine.submit(Ask(prompt_of(9), dataclasses.replace(params, n=3))).request_id]
        for _ in range(steps):
            engine.step()
        random.Random(steps).shuffle(requests)
        for request in requests:
            engine.abort(request)
            check(engine)
        assert pages_in_use(engine) == 0
        assert not engine.has_unfinished
        assert (engine.num_running, engine.num_waiting) == (0, 0)
        assert engine.step() == []


def test_five_thousand_requests_leave_nothing_behind() -> None:
    engine, runner, pool = make_engine(pages=40, max_num_batched_tokens=64, max_num_seqs=8)
    choose = random.Random(0)
    live: list[str] = []

    def serve(count: int) -> None:
        for _ in range(count):
            prompt = prompt_of(choose.randint(0, 70)) + prompt_of(choose.randint(1, 20), 1)
            n = choose.choice([1, 1, 1, 2])
            params = SamplingParams(seed=0, max_tokens=choose.randint(1, 6), n=n)
            live.append(engine.submit(Ask(prompt, params)).request_id)
            if choose.random() < 0.3:
                engine.abort(live.pop(choose.randrange(len(live))))
            if len(live) > 12:
                finished = {d.request_id for d in engine.step() if d.finished}
                live[:] = [request for request in live if request not in finished]
        finish(engine)
        live.clear()
        runner.rows.clear()

    serve(1000)
    gc.collect()
    blocks, resident = sys.getallocatedblocks(), resident_bytes()
    serve(4000)
    gc.collect()
    assert pages_in_use(engine) == 0
    assert engine.counters.aborted > 500
    assert engine.counters.finished + engine.counters.aborted == engine.counters.requests == 5000
    assert engine.cache.num_evictable + pool.num_free == pool.num_pages
    assert sys.getallocatedblocks() - blocks < 1000
    assert resident_bytes() - resident < 1 << 20


@pytest.mark.parametrize("fails_at", range(1, 12))
def test_a_step_that_fails_costs_time_only(fails_at: int) -> None:
    """A step may fail before prefill, copy, fork or decode. No delta is lost or delivered twice.

    The runner writes, then fails; or the sampling of a later row does.
    """
    countdown = 1000

    def logits_of(tokens: tuple[int, ...]) -> Float32Array:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise ZeroDivisionError
        if countdown == -5:
            return np.full(VOCAB, np.nan, dtype=np.float32)
        return hashed_logits(tokens)

    engine, _, _ = make_engine(logits_of=logits_of, max_num_batched_tokens=96)
    engine.submit(Ask(prompt_of(50), GREEDY))
    finish(engine)
    countdown = fails_at
    prompts = [prompt_of(40) + prompt_of(60, 1), prompt_of(50) + prompt_of(9, 2), prompt_of(90)]
    params = SamplingParams(seed=1, max_tokens=8, n=2)
    requests = [engine.submit(Ask(prompt, params)).request_id for prompt in prompts]
    tokens: dict[tuple[str, int], tuple[int, ...]] = {}
    failures = 0
    outputs = {}
    for _ in range(200):
        try:
            deltas = engine.step()
        except (ZeroDivisionError, ModelFileError):
            failures += 1
            deltas = []
        for delta in deltas:
            key = delta.request_id, delta.index
            tokens[key] = tokens.get(key, ()) + delta.token_ids
            if delta.output is not None:
                outputs[delta.request_id] = delta.output
        check(engine)
    assert failures == 2
    assert pages_in_use(engine) == 0
    for request, prompt in zip(requests, prompts, strict=True):
        alone, _, _ = make_engine()
        expected = finish_one(alone, prompt, params)
        assert [output.token_ids for output in outputs[request].outputs] == expected
        assert [tokens[request, index] for index in range(2)] == expected


def finish_one(engine: Engine, prompt: list[int], params: SamplingParams) -> list[tuple[int, ...]]:
    """The tokens of the answers to one prompt."""
    request = engine.submit(Ask(prompt, params)).request_id
    return [output.token_ids for output in finish(engine)[request].outputs]


def mean_seconds_to_plan(engine: Engine, steps: int) -> float:
    """Mean seconds of one call of ``plan``, over ``steps`` steps."""
    spent = 0.0
    for _ in range(steps):
        start = time.perf_counter()
        engine.scheduler.plan()
        spent += time.perf_counter() - start
        engine.step()
    return spent / steps


def test_planning_is_quick() -> None:
    engine, _, _ = make_engine(
        pages=4096,
        logits_of=lambda tokens: np.zeros(VOCAB, dtype=np.float32),
        max_num_seqs=256,
        max_num_batched_tokens=1024,
    )
    for seed in range(1256):
        params = SamplingParams(temperature=0, max_tokens=100)
        engine.submit(Ask(prompt_of(30, seed), params))
    while engine.num_running < 256:
        engine.step()
    assert engine.num_waiting == 1000
    assert min(mean_seconds_to_plan(engine, 10) for _ in range(3)) < 1e-3
