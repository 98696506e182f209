"""However an answer was computed, it is the same: in every codec, ``==`` on ids and on logits.

Every page that is free holds NaN patterns, and the pages are accounted for after every step.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.api.miss import Reason
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer

from .serving import Answered, Model, Server
from .truth import standard_text

PAGE = 32
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
LONG = dataclasses.replace(GREEDY, max_tokens=40)


@pytest.fixture(scope="module")
def ids(codec_model: Path) -> list[int]:
    with open_checkpoint(codec_model) as checkpoint:
        return Tokenizer(checkpoint.vocabulary).encode(standard_text()[:20_000])


@pytest.fixture(scope="module")
def model(codec_model: Path, codec: str) -> Model:
    return Model(codec_model, codec)


@pytest.fixture(scope="module")
def cold(model: Model) -> Server:
    """An engine that reuses nothing."""
    return Server(model, enable_prefix_caching=False)


@pytest.fixture
def server(model: Model) -> Server:
    """An engine with an empty cache."""
    return Server(model)


def same(answered: Answered, expected: Answered) -> None:
    """Equal ids, and equal logits to the bit."""
    assert answered.ids == expected.ids
    np.testing.assert_array_equal(answered.logits, expected.logits)
    assert np.isfinite(answered.logits).all()


def test_warm_is_cold(server: Server, cold: Server, ids: list[int]) -> None:
    expected = cold.answer(ids[:100], GREEDY)
    assert expected.cached == 0
    assert expected.output.miss is not None
    assert expected.output.miss.reason == Reason.DISABLED
    first, again = (server.answer(ids[:100], GREEDY) for _ in range(2))
    same(first, expected)
    same(again, expected)
    assert (first.cached, again.cached) == (0, 99)
    assert first.output.miss is not None
    assert first.output.miss.reason == Reason.COLD
    assert again.output.miss is None
    assert server.runner.rows[-4:] == [[1]] * 4


def test_every_length_of_a_prompt(server: Server, cold: Server, ids: list[int]) -> None:
    """First with all shorter ones in the cache, then with itself too."""
    for length in range(1, 2 * PAGE + 2):
        expected = cold.answer(ids[:length], GREEDY)
        for _ in range(2):
            warm = server.answer(ids[:length], GREEDY)
            same(warm, expected)
            assert warm.cached == length - 1


def test_parting_at_every_row_of_a_page(server: Server, cold: Server, ids: list[int]) -> None:
    prompt = ids[: 2 * PAGE + 16]
    server.answer(prompt, GREEDY)
    start = next(i for i in range(300, len(ids)) if ids[i] not in prompt)
    for row in range(PAGE + 1):
        other = [*prompt[: PAGE + row], *ids[start : start + 20]]
        assert other[PAGE + row] != prompt[PAGE + row]
        parted = server.answer(other, GREEDY)
        same(parted, cold.answer(other, GREEDY))
        assert parted.cached == PAGE + row
        assert parted.output.miss is not None
        assert parted.output.miss.index == PAGE + row


def test_the_next_turn_reuses_the_answer(server: Server, cold: Server, ids: list[int]) -> None:
    first = server.answer(ids[:50], LONG)
    turn = [*ids[:50], *first.ids, *ids[400:420]]
    second = server.answer(turn, GREEDY)
    same(second, cold.answer(turn, GREEDY))
    assert second.cached == 50 + 39  # the last token of an answer is never computed


def test_after_a_stop_text_and_a_stop_token(server: Server, cold: Server, ids: list[int]) -> None:
    whole = cold.answer(ids[:45], LONG)
    text = whole.output.outputs[0].text
    stops = [
        dataclasses.replace(LONG, stop=text[len(text) // 2 :][:4]),
        dataclasses.replace(LONG, stop_token_ids=[whole.ids[7]]),
    ]
    for stop in stops:
        stopped = server.answer(ids[:45], stop)
        assert stopped.output.outputs[0].finish_reason == "stop"
        same(server.answer(ids[:45], LONG), whole)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("count", [2, 9, 32])
def test_company(model: Model, cold: Server, ids: list[int], count: int, grouped: bool) -> None:
    """Some share a prefix, some resume it warm, some have nothing to do with it."""
    server = Server(model, pages=160, grouped=grouped)
    server.answer(ids[:70], GREEDY)
    prompts = [
        ids[i * 11 : i * 11 + 40] if i % 3 == 0 else [*ids[: 20 + 7 * i], *ids[500 + i : 504 + i]]
        for i in range(count)
    ]
    requests = [server.add(prompt, GREEDY) for prompt in prompts]
    server.finish()
    for request, prompt in zip(requests, prompts, strict=True):
        same(server.answered(request), cold.answer(prompt, GREEDY))


def test_identical_prompts_together_prefill_once(
    server: Server, cold: Server, ids: list[int]
) -> None:
    requests = [server.add(ids[:200], GREEDY) for _ in range(8)]
    server.finish()
    expected = cold.answer(ids[:200], GREEDY)
    for request in requests:
        same(server.answered(request), expected)
    computed = server.engine.counters.computed_tokens - 8 * 3  # rows after the first token
    assert computed <= 200 + 7 * (200 % PAGE)


@pytest.mark.parametrize("length", [5, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 9])
@pytest.mark.parametrize("seats", [33, 2])
def test_forked(model: Model, cold: Server, ids: list[int], length: int, seats: int) -> None:
    """Also where a sibling finds no seat and has to compute what is not in full pages."""
    server = Server(model, seats=seats)
    params = SamplingParams(n=4, seed=7, max_tokens=6, ignore_eos=True)
    request = server.add(ids[:length], params)
    server.finish()
    assert len(server.outputs[request].outputs) == 4
    for index in range(4):
        alone = dataclasses.replace(params, n=1, seed=7 + index)
        same(server.answered(request, index), cold.answer(ids[:length], alone))
    if seats > 4:
        assert server.engine.counters.computed_tokens == length + 4 * 5


def test_preempted_and_resumed(model: Model, cold: Server, ids: list[int]) -> None:
    server = Server(model, pages=9)
    prompts = [ids[i * 50 : i * 50 + 60] for i in range(4)]
    params = dataclasses.replace(GREEDY, max_tokens=80)
    requests = [server.add(prompt, params) for prompt in prompts]
    server.finish()
    assert server.engine.counters.preemptions > 0
    assert server.pool.peak_used == 9
    for request, prompt in zip(requests, prompts, strict=True):
        same(server.answered(request), cold.answer(prompt, params))


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("evicted", [1, 3, 1000])
def test_an_eviction_before_every_step(
    model: Model, cold: Server, ids: list[int], evicted: int, grouped: bool
) -> None:
    """Whatever goes: what was shared, was to be copied from, or was waited for."""
    server = Server(
        model, pages=40, budget=48, seats=4, evict_before_steps=evicted, grouped=grouped
    )
    prompts = [[*ids[: 20 + 17 * i], *ids[500 + i : 504 + i]] for i in range(9)]
    requests = [server.add(prompt, GREEDY) for prompt in [*prompts, *prompts]]
    server.finish()
    assert server.cache.num_evicted > 0
    for request, prompt in zip(requests, [*prompts, *prompts], strict=True):
        same(server.answered(request), cold.answer(prompt, GREEDY))


def test_a_pool_that_one_request_fills(model: Model, cold: Server, ids: list[int]) -> None:
    server = Server(model, pages=3, budget=20)
    for start in (0, 0, 10, 0):
        prompt = ids[start : start + 92]
        params = dataclasses.replace(GREEDY, max_tokens=5)
        same(server.answer(prompt, params), cold.answer(prompt, params))


def test_salts_share_nothing(server: Server, cold: Server, ids: list[int]) -> None:
    expected = cold.answer(ids[:80], GREEDY)
    for salt in (None, "a", "b"):
        fresh, again = (server.answer(ids[:80], GREEDY, salt) for _ in range(2))
        assert (fresh.cached, again.cached) == (0, 79)
        same(fresh, expected)
        same(again, expected)
    together = [server.add(ids[100:180], GREEDY, salt) for salt in ("a", "b", "a")]
    server.finish()
    assert [server.answered(request).cached for request in together] == [0, 0, 64]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_anything_at_once(model: Model, cold: Server, ids: list[int], data: st.DataObject) -> None:
    """Pool, budget, seats, arrivals, prefixes and aborts as they come."""
    integers = st.integers
    server = Server(
        model,
        evict_before_steps=data.draw(integers(0, 3), "evictions"),
        pages=data.draw(integers(5, 16), "pages"),
        budget=data.draw(st.sampled_from([3, 17, 64, 256]), "budget"),
        seats=data.draw(integers(1, 6), "seats"),
        grouped=data.draw(st.booleans(), "grouped"),
    )
    params = dataclasses.replace(GREEDY, max_tokens=data.draw(integers(1, 40), "max_tokens"))
    prompts = data.draw(
        st.lists(
            st.builds(
                lambda start, shared, own: [*ids[:shared], *ids[start : start + own]],
                st.sampled_from([200, 300]),
                integers(0, 75),
                integers(1, 40),
            ),
            min_size=1,
            max_size=7,
        ),
        "prompts",
    )
    requests = []
    for prompt in prompts:
        requests.append(server.add(prompt, params))
        for _ in range(data.draw(integers(0, 5), "steps")):
            server.step()
        if data.draw(integers(0, 4), "abort") == 0:
            server.abort(data.draw(st.sampled_from(requests), "which"))
    server.finish()
    for request, prompt in zip(requests, prompts, strict=True):
        answered, expected = server.answered(request), cold.answer(prompt, params)
        count = len(answered.ids)
        assert answered.ids == expected.ids[:count]
        if count:
            np.testing.assert_array_equal(answered.logits, expected.logits[:count])
        if answered.output.outputs[0].finish_reason != "abort":
            assert count == len(expected.ids)
