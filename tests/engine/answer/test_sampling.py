"""Sampling against formulas written the plain way: everything sorted, nothing skipped."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.candidates import HEAVY, choose, draw, largest_k, limited, nucleus, weigh
from kvreuse.engine.answer.logprobs import top_logprobs
from kvreuse.engine.answer.sampler import Sampler, make_generator
from kvreuse.errors import ModelFileError

Floats = npt.NDArray[np.float64]
VOCAB = 1000


def sampler_of(
    params: SamplingParams, vocab_size: int, prompt_ids: Any, stop_ids: tuple[int, ...] = ()
) -> Sampler:
    generator = None if params.greedy else make_generator(params.seed, 0, "request")
    return Sampler(params, vocab_size, prompt_ids, generator, stop_ids=stop_ids)


def row_of(seed: int, size: int = VOCAB, spread: float = 3.0) -> npt.NDArray[np.float32]:
    """Random logits; every tenth is equal to its neighbour, so that there are ties."""
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32) * np.float32(spread)
    logits[1::10] = logits[: len(logits[1::10]) * 10 : 10]
    return logits


def plain_probabilities(logits: npt.NDArray[np.float32], params: SamplingParams) -> Floats:
    """Softmax at a temperature, then min_p, top_k and top_p in this order, each renormalised."""
    scaled = logits.astype(np.float64) / params.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    if params.top_k > 0:
        p[p < np.sort(p)[::-1][min(params.top_k, len(p)) - 1]] = 0
    p /= p.sum()
    if params.top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= params.top_p]] = 0
    return np.asarray(p / p.sum())


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1, 2, 63, 64, 1000, 5000]),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 0, 1, 2, 40, 999, 10_000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_candidates_are_those_of_the_plain_formula(
    *,
    seed: int,
    size: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row_of(seed, size, spread)
    ids = limited(logits, float(logits.max()), params)
    kept = np.arange(size) if ids is None else ids
    weights = weigh(logits[kept], float(logits.max()), temperature)
    if top_p < 1:
        inside = nucleus(weights, top_p)
        kept, weights = kept[inside], weights[inside]
    assert (np.diff(kept) > 0).all()
    # float32 may decide otherwise about a token that lies on the border to six digits.
    least, most = (
        plain_probabilities(
            logits,
            dataclasses.replace(
                params,
                top_p=min(1, top_p * (1 + slack)) if top_p < 1 else 1,
                min_p=min(1, min_p * (1 - slack)),
            ),
        )
        for slack in (-1e-5, 1e-5)
    )
    assert set(np.flatnonzero(least)) <= set(kept) <= set(np.flatnonzero(most))
    every = dataclasses.replace(params, top_p=1, top_k=0, min_p=0)
    expected = plain_probabilities(logits, every)[kept]
    np.testing.assert_allclose(
        weights / weights.max(), expected / expected.max(), rtol=2e-5, atol=1e-36
    )


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=700).filter(any),
    top_p=st.floats(0.001, 0.999),
)
def test_a_nucleus_is_the_smallest_that_reaches_its_mass(weights: list[int], top_p: float) -> None:
    values = np.array(weights, dtype=np.float32)
    kept = nucleus(values, top_p)
    inside, enough = values[kept], top_p * values.sum()
    assert (np.diff(kept) > 0).all()
    assert inside.sum() >= enough
    assert inside.sum() - inside.min() < enough
    outside = np.delete(np.arange(len(values)), kept)
    assert values[outside].max(initial=0) <= inside.min()
    ties = outside[values[outside] == inside.min()]
    last_kept = kept[inside == inside.min()].max()
    assert (ties > last_kept).all()  # of equal weights the lower index comes first


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=300), st.data())
def test_the_k_largest_are_those_of_the_sorted(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    least = sorted(values, reverse=True)[k - 1]
    expected = [index for index, value in enumerate(values) if value >= least]
    assert largest_k(np.array(values, dtype=np.float32), k).tolist() == expected


@given(
    weights=st.lists(st.floats(1e-9, 1e3) | st.just(0.0), min_size=1, max_size=3000).filter(any),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_draw_takes_the_weight_that_the_target_falls_on(
    weights: list[float], uniform: float
) -> None:
    values = np.array(weights, dtype=np.float32)
    target = uniform * math.fsum(values)
    index = draw(values, target)
    slack = 1e-6 * values.sum()
    assert values[index] > 0
    assert math.fsum(values[:index]) <= target + slack
    assert math.fsum(values[: index + 1]) >= target - slack


@pytest.mark.parametrize("size", [1, 2, 3, 10, 99, 100, 101, 1000, 1024, 1025, 1100, 5000])
def test_draw_at_both_ends(size: int) -> None:
    weights = np.zeros(size, dtype=np.float32)
    weights[[size // 3, size // 2]] = 0.1
    whole = float(weights.sum(dtype=np.float64))
    assert draw(weights, 0.0) == size // 3
    assert draw(weights, math.nextafter(whole, 0)) == size // 2
    assert draw(weights, whole * 1.0000001) == size // 2


def plain_sample(
    row: npt.NDArray[np.float32],
    params: SamplingParams,
    *,
    prompt: list[int],
    answer: list[int],
    stop: list[int],
    uniform: float,
) -> int:
    """One token, by the definition of every step, in loops."""
    logits = row.copy()
    for token in set(prompt + answer):
        factor = np.float32(params.repetition_penalty)
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, times in Counter(answer).items():
        logits[token] -= np.float32(params.frequency_penalty) * np.float32(times)
        logits[token] -= np.float32(params.presence_penalty)
    if len(answer) < params.min_tokens:
        logits[stop] = -np.inf
    if params.temperature == 0:
        return int(np.flatnonzero(logits == logits.max())[0])
    p = plain_probabilities(logits, params)
    order = np.argsort(p < HEAVY * p.max(), kind="stable")  # the heavy ones first
    return int(order[np.flatnonzero(np.cumsum(p[order]) > uniform)[0]])


@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
@pytest.mark.parametrize(("size", "head"), [(3000, 20), (3000, 900), (120_000, 20), (120_000, 300)])
def test_a_choice_is_that_of_the_plain_formula(
    size: int, head: int, temperature: float, top_p: float
) -> None:
    """Rows as models give them: a few likely tokens above a broad rest, peaked or not."""
    generator = np.random.default_rng(size + head)
    row = generator.normal(size=size).astype(np.float32)
    row[generator.choice(size, head, replace=False)] += generator.uniform(3, 14, head)
    params = SamplingParams(temperature=temperature, top_p=top_p)
    p = plain_probabilities(row, params)
    order = np.argsort(p < HEAVY * p.max(), kind="stable")
    reached = np.cumsum(p[order])
    for uniform in [0.0, 0.9999, *generator.random(40).tolist()]:
        place = int(np.searchsorted(reached, uniform, side="right"))
        if np.abs(reached[max(0, place - 1) : place + 1] - uniform).min() > 1e-5:
            assert choose(row, float(row.max()), params, uniform) == order[place]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.4),
        SamplingParams(temperature=0, repetition_penalty=0.7),
        SamplingParams(temperature=0, presence_penalty=1.5, frequency_penalty=-0.7),
        SamplingParams(temperature=0, min_tokens=50, max_tokens=200),
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.6, top_k=20, top_p=0.9),
        SamplingParams(seed=3, temperature=1.7, min_p=0.05),
        SamplingParams(
            seed=2**64 - 1,
            top_p=0.8,
            repetition_penalty=1.2,
            frequency_penalty=0.4,
            presence_penalty=-0.3,
            min_tokens=20,
            max_tokens=None,
        ),
    ],
    ids=repr,
)
def test_a_sampler_follows_the_plain_formula(params: SamplingParams) -> None:
    prompt, stop = [3, 4, 5, 3], [7, 8, 600]
    sampler = sampler_of(
        params, vocab_size=VOCAB, prompt_ids=np.array(prompt), stop_ids=(*stop, VOCAB + 5)
    )
    generator = np.random.Generator(np.random.Philox(params.seed or 0))
    answer: list[int] = []
    for step in range(200):
        row = row_of(step % 3)  # few rows, so that tokens come again and penalties bite
        before = row.copy()
        uniform = 0.0 if params.greedy else float(generator.random())
        expected = plain_sample(
            row, params, prompt=prompt, answer=answer, stop=stop, uniform=uniform
        )
        assert sampler.sample(row) == expected
        assert (row == before).all()
        answer.append(expected)


def test_the_lowest_of_equal_logits_wins() -> None:
    sampler = sampler_of(SamplingParams(temperature=0), vocab_size=4, prompt_ids=np.array([0]))
    assert sampler.sample(np.array([1, 3, 3, 2], dtype=np.float32)) == 1


@pytest.mark.parametrize("temperature", [1e-5, 1e30, 1e300])
def test_any_temperature_keeps_banned_tokens_out(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=0, min_tokens=16)
    banned = tuple(range(3, VOCAB))
    sampler = sampler_of(params, vocab_size=VOCAB, prompt_ids=np.array([0]), stop_ids=banned)
    assert {sampler.sample(row_of(0)) for _ in range(16)} <= {0, 1, 2}


def test_a_tiny_temperature_is_greedy() -> None:
    params = SamplingParams(temperature=1e-9, seed=0)
    sampler = sampler_of(params, vocab_size=VOCAB, prompt_ids=np.array([0]))
    assert sampler.sample(row_of(0)) == row_of(0).argmax()


def test_a_row_is_sampled_alike_wherever_it_lies() -> None:
    batch = np.stack([row_of(seed, 997) for seed in range(5)])
    params = SamplingParams(seed=4, top_p=0.95, temperature=1.3)
    for index in range(5):
        drawn = {
            sampler_of(params, vocab_size=997, prompt_ids=np.array([0])).sample(row)
            for row in (batch[index], batch[index].copy(), batch.T.copy().T[index])
        }
        assert len(drawn) == 1


def test_samples_are_distributed_as_they_should_be() -> None:
    logits = row_of(1, 50, 1.0)
    params = SamplingParams(temperature=1.2, top_k=20, top_p=0.9, seed=11)
    sampler = sampler_of(params, vocab_size=50, prompt_ids=np.array([0]))
    count = 20_000
    drawn = np.bincount([sampler.sample(logits) for _ in range(count)], minlength=50)
    expected = plain_probabilities(logits, params) * count
    assert (drawn[expected == 0] == 0).all()
    kept = expected > 0
    chi2 = ((drawn[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees)


def test_generators_of_requests() -> None:
    def first(seed: int | None, engine_seed: int, request_id: str) -> float:
        return float(make_generator(seed, engine_seed, request_id).random())

    assert first(5, 0, "a") == first(5, 1, "b")
    assert len({first(None, seed, name) for seed in (0, 1) for name in "ab"}) == 4
    assert first(None, 1, "a") == first(None, 1, "a")
    assert first(None, 0, "a") != first(0, 0, "a")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_not_sampled(bad: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits = row_of(0)
    logits[500] = bad
    with pytest.raises(ModelFileError, match=f"largest logit is {bad}"):
        sampler_of(params, vocab_size=VOCAB, prompt_ids=np.array([0])).sample(logits)


@pytest.mark.parametrize("k", [0, 1, 5, 63, 64, VOCAB, VOCAB + 1])
@pytest.mark.parametrize("token", [0, 1, 10, 999])
def test_logprobs_are_those_of_the_plain_softmax(k: int, token: int) -> None:
    logits = row_of(9)
    p = np.exp(logits.astype(np.float64) - float(logits.max()))
    expected = np.log(p / p.sum())
    chosen, *best = top_logprobs(logits, token, k)
    assert (chosen.token_id, chosen.rank) == (token, int((logits >= logits[token]).sum()))
    assert chosen.logprob == pytest.approx(expected[token], abs=1e-5)
    order = sorted(range(VOCAB), key=lambda index: (-logits[index], index))[:k]
    assert [item.token_id for item in best] == order
    assert [item.rank for item in best] == list(range(1, len(order) + 1))
    np.testing.assert_allclose([item.logprob for item in best], expected[order], atol=1e-5)


def test_params_are_not_changed_by_sampling() -> None:
    params = SamplingParams(seed=1, repetition_penalty=1.5, min_tokens=2)
    before = dataclasses.asdict(params)
    sampler_of(params, vocab_size=VOCAB, prompt_ids=np.array([0]), stop_ids=(1,)).sample(row_of(0))
    assert dataclasses.asdict(params) == before
