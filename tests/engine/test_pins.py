"""Pins of unfinished requests: their share of the quota, and when pins give way."""

from __future__ import annotations

import dataclasses

import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.retention import Retention
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.errors import RequestError

from .paging import finish, forget, greedy, make_engine, prompt_of

GREEDY = SamplingParams(temperature=0, max_tokens=8)
ONE = dataclasses.replace(GREEDY, max_tokens=1)


def test_pins_of_those_being_served_count() -> None:
    engine, _, _ = make_engine(pages=10)
    pin = Retention(pin=True)
    engine.submit(Ask(prompt_of(100), GREEDY, retention=pin))
    with pytest.raises(RequestError, match=r"takes 3 pages .* of the 5 .* 3 are taken"):
        engine.submit(Ask(prompt_of(100, 1), GREEDY, retention=pin))
    engine.submit(Ask(prompt_of(64, 1), GREEDY, retention=pin))
    finish(engine)
    assert engine.cache.num_pinned == 5
    forget(engine.cache)
    for length, seed in ((100, 0), (64, 1)):
        request = engine.submit(Ask(prompt_of(length, seed), ONE)).request_id
        assert finish(engine)[request].num_cached_tokens >= length // 32 * 32 - 1
    again = Retention(session_end=True)
    engine.submit(Ask(prompt_of(100), ONE, retention=again))
    finish(engine)
    assert engine.cache.num_pinned == 2


def test_pins_of_the_same_pages_count_once() -> None:
    """The quota counts pages that are pinned and pages that another request will pin."""
    engine, _, _ = make_engine(pages=10, max_model_len=320)
    pin = Retention(pin=True)
    for _ in range(2):
        for last in range(3):
            engine.submit(Ask([*prompt_of(160), last], GREEDY, retention=pin))
        engine.submit(Ask(prompt_of(160), GREEDY, retention=pin))  # which ends with a page
        finish(engine)
        assert engine.cache.num_pinned == 5


def test_a_pin_gives_way_to_a_request_that_could_never_end() -> None:
    engine, _, pool = make_engine(pages=10)
    engine.submit(Ask(prompt_of(160), ONE, retention=Retention(pin=True)))
    finish(engine)
    assert engine.cache.num_pinned == 5
    request = engine.submit(
        Ask(prompt_of(250, 1), dataclasses.replace(GREEDY, max_tokens=30))
    ).request_id
    output = finish(engine)[request]
    assert list(output.outputs[0].token_ids) == greedy(prompt_of(250, 1), 30)
    assert 0 < engine.cache.num_pinned < 5
    assert pool.peak_used == 10
