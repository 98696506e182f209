"""The interface of an engine: an ask in, deltas to a sink, a handle back."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.miss import Reason
from kvreuse.api.outputs import Delta
from kvreuse.api.retention import Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import ModelFileError
from kvreuse.kv.prefix import PrefixIndex

from .paging import Logits, finish, hashed_logits, make_engine, pages_in_use, prompt_of

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_an_ask_is_never_changed() -> None:
    engine, _, _ = make_engine()
    ask = Ask(prompt_of(40), dataclasses.replace(GREEDY, n=3, seed=5), cache_salt="tenant")
    before = [getattr(ask, field.name) for field in dataclasses.fields(ask)]
    engine.submit(ask)
    finish(engine)
    assert [getattr(ask, field.name) for field in dataclasses.fields(ask)] == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        ask.text = "other"  # type: ignore[misc]


def test_every_sink_gets_its_own_deltas() -> None:
    engine, _, _ = make_engine()
    got: list[list[Delta]] = [[], []]
    handles = [
        engine.submit(Ask(prompt_of(40, seed), GREEDY), sink.append)
        for seed, sink in enumerate(got)
    ]
    returned: list[Delta] = []
    while engine.has_unfinished:
        returned += engine.step()
    for handle, deltas in zip(handles, got, strict=True):
        assert deltas == [one for one in returned if one.request_id == handle.request_id]
        assert deltas[-1].output is not None
        assert handle.abort() is None


def test_a_sink_that_raises_costs_nobody_else_a_delta() -> None:
    engine, _, _ = make_engine()
    quiet: list[Delta] = []

    def angry(delta: Delta) -> None:
        raise RuntimeError("not now")

    failing = engine.submit(Ask(prompt_of(20), GREEDY), angry)
    engine.submit(Ask(prompt_of(20, 1), GREEDY), quiet.append)
    with pytest.raises(RuntimeError, match="not now"):
        engine.step()
    assert failing.abort() is not None
    while engine.has_unfinished:
        engine.step()
    assert [token for delta in quiet for token in delta.token_ids]
    assert len(quiet) == 8


@pytest.mark.parametrize("shared", [0, 40, 64, 90])
def test_one_match_serves_an_admission(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, _ = make_engine()
    engine.submit(Ask(prompt_of(96), GREEDY))
    finish(engine)
    matches = 0
    plain = PrefixIndex.match

    def counted(index: PrefixIndex, *arguments: Any) -> Any:
        nonlocal matches
        matches += 1
        return plain(index, *arguments)

    monkeypatch.setattr(PrefixIndex, "match", counted)
    engine.submit(Ask([*prompt_of(shared), *prompt_of(20, 1)], GREEDY))
    engine.step()
    assert engine.num_running == 1
    assert matches == 1


def test_a_miss_is_read_only_by_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, _ = make_engine()
    engine.submit(Ask(prompt_of(64), GREEDY))
    finish(engine)
    read = 0

    def part_of(character: int) -> str:
        nonlocal read
        read += 1
        return "system text"

    engine.submit(Ask([*prompt_of(40), 7, 7, 7], GREEDY, text="...", part_of=part_of))
    (output,) = finish(engine).values()
    assert output.miss is not None
    assert output.miss.reason is Reason.DIVERGED
    assert read == 0


def test_a_first_token_whose_step_failed_keeps_its_count_and_its_time() -> None:
    broken = True

    def logits_of(tokens: tuple[int, ...]) -> Logits:
        logits = hashed_logits(tokens)
        return np.full_like(logits, np.nan) if broken and len(tokens) == 50 else logits

    engine, _, _ = make_engine(logits_of=logits_of)
    engine.submit(Ask(prompt_of(40), dataclasses.replace(GREEDY, max_tokens=1)))
    finish(engine)
    engine.submit(Ask(prompt_of(50), GREEDY))
    with pytest.raises(ModelFileError):
        engine.step()
    broken = False
    first, *_ = engine.step()
    assert first.num_cached_tokens == 40
    (output,) = finish(engine).values()
    assert output.metrics.first_token_time is not None


def test_a_preempted_request_keeps_its_pages_priority() -> None:
    """Its pages are not worth more than those of requests of higher priority."""
    engine, _, _ = make_engine(pages=8, max_model_len=200)
    long = dataclasses.replace(GREEDY, max_tokens=60)
    engine.submit(Ask(prompt_of(90, 1), long))
    low = engine.submit(Ask(prompt_of(90, 2), long, retention=Retention(priority=3)))
    ranks: list[list[int]] = []
    while engine.has_unfinished:
        engine.step()
        waiting = list(engine.scheduler.waiting)
        if waiting and waiting[0].num_preemptions:
            evictor, index = engine.cache._evictor, engine.cache._index
            match = index.match(None, np.array(prompt_of(90, 2), dtype="<i4").tobytes())
            ranks.append([evictor._ranks[page] for page in match.nodes])
    assert any(ranks)
    assert all(rank <= -3 for some in ranks for rank in some)
    assert low.abort() is None


def test_a_sibling_aborted_in_its_second_prefill_has_no_negative_pages() -> None:
    engine, _, _ = make_engine(
        pages=10, max_model_len=300, max_num_batched_tokens=32, enable_prefix_caching=False
    )
    params = dataclasses.replace(GREEDY, n=3, temperature=1.0, seed=1, max_tokens=60)
    handle = engine.submit(Ask(prompt_of(120), params))
    outputs = []
    for _ in range(400):
        engine.step()
        again = [
            request
            for request in engine.scheduler.running
            if request.index
            and request.num_preemptions
            and request.num_computed_tokens < request.num_prompt_tokens - 32
        ]
        if again:
            outputs.append(handle.abort())
            break
    engine.check()
    assert pages_in_use(engine) == 0
    for output in outputs:
        assert output is not None
        assert 0 < output.metrics.num_pages <= output.metrics.num_reserved_pages
    assert outputs, "no sibling came to a second prefill"


def test_preempting_needs_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters do not influence scheduling: with frozen counters it decides the same."""
    engine, _, _ = make_engine(pages=8, max_model_len=200)
    still = dataclasses.replace(engine.counters)
    for seed in range(4):
        engine.submit(Ask(prompt_of(60, seed), dataclasses.replace(GREEDY, max_tokens=60)))
    outputs = {}
    while engine.has_unfinished:
        for delta in engine.step():
            if delta.output is not None:
                outputs[delta.request_id] = delta.output
        for field in dataclasses.fields(still):
            setattr(engine.counters, field.name, getattr(still, field.name))
        engine.check()
    assert len(outputs) == 4
    assert sum(one.metrics.num_preemptions for one in outputs.values()) > 0
