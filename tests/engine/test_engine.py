"""The engine's loop over a runner whose answers are right only if the paging is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import RequestOutput
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.bounds import check_pool
from kvreuse.errors import ConfigError, RequestError
from kvreuse.kv.pool import PagePool

from .paging import LAYOUT, VOCAB, check, finish, greedy, make_engine, pages_in_use, steps

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return tokens


def alone(prompt: list[int], params: SamplingParams, request_id: str = "0") -> RequestOutput:
    """The answer of an engine that serves nothing else."""
    engine, _, _ = make_engine()
    engine.submit(Ask(prompt, params, request_id=request_id))
    output = finish(engine)[request_id]
    assert pages_in_use(engine) == 0
    return output


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 200])
def test_an_answer_is_that_of_the_plain_loop(length: int) -> None:
    prompt = prompt_of(length)
    output = alone(prompt, dataclasses.replace(GREEDY, max_tokens=70))
    (completion,) = output.outputs
    assert list(completion.token_ids) == greedy(prompt, 70)
    assert completion.finish_reason == "length"
    assert output.prompt_token_ids == tuple(prompt)


@dataclasses.dataclass(frozen=True)
class Load:
    """One request of a mixed load; ``abort_after`` counts steps."""

    prompt: list[int]
    salt: str | None
    params: SamplingParams
    arrives: int
    abort_after: int | None


loads = st.builds(
    Load,
    prompt=st.builds(  # often with a prefix in common
        lambda shared, own, seed: [*prompt_of(shared), *prompt_of(own, seed)],
        st.integers(0, 60),
        st.integers(1, 40),
        st.integers(0, 3),
    ),
    salt=st.sampled_from([None, None, None, "a"]),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        top_k=st.sampled_from([0, 5]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        seed=st.none() | st.integers(0, 3),
        max_tokens=st.integers(1, 40),
        n=st.sampled_from([1, 1, 1, 3]),
        stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=4),
    ),
    arrives=st.integers(0, 12),
    abort_after=st.none() | st.none() | st.integers(0, 20),
)


@settings(max_examples=60, deadline=None)
@given(
    every=st.lists(loads, min_size=1, max_size=8),
    pages=st.integers(5, 20),
    budget=st.sampled_from([1, 2, 7, 16, 33, 256]),
    seats=st.integers(1, 8),
    caching=st.sampled_from([True, True, True, False]),
)
def test_an_answer_does_not_depend_on_the_company(
    every: list[Load], pages: int, budget: int, seats: int, caching: bool
) -> None:
    engine, _, _ = make_engine(
        pages=pages,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=141,
        enable_prefix_caching=caching,
    )
    outputs: dict[str, RequestOutput] = {}
    for step in range(5000):
        if step > 12 and not engine.has_unfinished:
            break
        for index, load in enumerate(every):
            if load.arrives == step:
                engine.submit(
                    Ask(load.prompt, load.params, request_id=str(index), cache_salt=load.salt)
                )
            if load.abort_after is not None and load.arrives + load.abort_after == step:
                aborted = engine.abort(str(index))
                outputs.update({str(index): aborted} if aborted is not None else {})
        outputs.update({d.request_id: d.output for d in engine.step() if d.output is not None})
        check(engine)
    assert pages_in_use(engine) == 0
    assert len(outputs) == len(every)
    for index, load in enumerate(every):
        check_output(outputs[str(index)], alone(load.prompt, load.params, str(index)))


def check_output(output: RequestOutput, expected: RequestOutput) -> None:
    """Equal, or aborted on the way to it."""
    for completion, whole in zip(output.outputs, expected.outputs, strict=True):
        if completion.finish_reason != "abort":
            assert completion == whole
        else:
            assert completion.token_ids == whole.token_ids[: len(completion.token_ids)]


def test_decoding_goes_first_and_chunks_take_the_rest() -> None:
    engine, runner, _ = make_engine(max_num_batched_tokens=16)
    engine.submit(Ask(prompt_of(10), GREEDY))
    engine.submit(Ask(prompt_of(20), GREEDY))
    engine.step()
    assert runner.rows[-1] == [10, 6]
    engine.step()
    assert runner.rows[-1] == [1, 14]
    engine.step()
    assert runner.rows[-1] == [1, 1]
    engine.submit(Ask(prompt_of(60), GREEDY))
    engine.step()
    assert runner.rows[-1] == [1, 1, 14]


def test_the_budget_is_never_exceeded_by_decoding() -> None:
    engine, runner, _ = make_engine(max_num_batched_tokens=3, max_num_seqs=64)
    for seed in range(7):
        engine.submit(Ask(prompt_of(5, seed), GREEDY, request_id=str(seed)))
    outputs = finish(engine)
    assert max(len(rows) for rows in runner.rows) == 3
    for seed in range(7):
        assert list(outputs[str(seed)].outputs[0].token_ids) == greedy(prompt_of(5, seed), 8)


def test_nobody_takes_the_pages_that_who_came_before_waits_for() -> None:
    engine, _, pool = make_engine(pages=4)
    engine.submit(Ask(prompt_of(60), GREEDY))  # 2 pages, and one to grow into
    engine.submit(Ask(prompt_of(60, seed=1), GREEDY))  # does not fit beside it
    engine.submit(Ask(prompt_of(5, seed=2), GREEDY))  # would, but came later
    engine.step()
    assert (engine.num_running, engine.num_waiting, pages_in_use(engine)) == (1, 2, 2)
    finish(engine)
    assert engine.counters.preemptions == 0
    assert pool.peak_used == 4


def test_seats_are_limited() -> None:
    engine, _, _ = make_engine(max_num_seqs=2)
    for _ in range(5):
        engine.submit(Ask(prompt_of(5), GREEDY))
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 3)


def test_the_pool_can_be_filled_to_the_last_page() -> None:
    engine, _, pool = make_engine(pages=3, max_model_len=512)
    engine.submit(Ask(prompt_of(89), GREEDY))  # 96 tokens in pages, 97 in all
    output = finish(engine)["0"]
    assert list(output.outputs[0].token_ids) == greedy(prompt_of(89), 8)
    assert pool.peak_used == 3
    assert output.metrics.num_pages == output.metrics.num_reserved_pages == 3


def test_the_answer_ends_at_the_end_of_the_context() -> None:
    engine, _, _ = make_engine(max_model_len=40)
    engine.submit(Ask(prompt_of(30), SamplingParams(temperature=0, max_tokens=None)))
    engine.submit(Ask(prompt_of(39), SamplingParams(temperature=0, max_tokens=1000)))
    outputs = finish(engine)
    assert list(outputs["0"].outputs[0].token_ids) == greedy(prompt_of(30), 10)
    assert list(outputs["1"].outputs[0].token_ids) == greedy(prompt_of(39), 1)
    assert outputs["1"].outputs[0].finish_reason == "length"


def test_an_answer_without_limit_ends_where_the_pool_does() -> None:
    engine, _, _ = make_engine(pages=2, max_model_len=512)
    engine.submit(Ask(prompt_of(60), SamplingParams(temperature=0, max_tokens=None)))
    assert len(finish(engine)["0"].outputs[0].token_ids) == 5  # 64 in pages, and the last one


def test_stop_token_ends_the_answer_and_is_part_of_it() -> None:
    expected = greedy(prompt_of(10), 8)
    index = next(i for i in range(1, 8) if expected[i] not in expected[:i])
    output = alone(prompt_of(10), dataclasses.replace(GREEDY, stop_token_ids=[expected[index]]))
    (completion,) = output.outputs
    assert list(completion.token_ids) == expected[: index + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", expected[index])


def test_min_tokens_bans_stop_tokens_until_then() -> None:
    expected = greedy(prompt_of(10), 1)
    params = dataclasses.replace(GREEDY, stop_token_ids=expected, min_tokens=3)
    (completion,) = alone(prompt_of(10), params).outputs
    assert len(completion.token_ids) >= 3
    assert expected[0] not in completion.token_ids[:3]


def test_a_stream_of_deltas_makes_the_output() -> None:
    engine, _, _ = make_engine()
    engine.submit(Ask(prompt_of(40), GREEDY))
    deltas = list(steps(engine))
    assert [token for delta in deltas for token in delta.token_ids] == greedy(prompt_of(40), 8)
    assert [delta.finished for delta in deltas] == [False] * 7 + [True]
    assert deltas[-1].output is not None


def test_a_seed_gives_the_same_answer_and_another_seed_another() -> None:
    params = SamplingParams(seed=5, max_tokens=30)
    first = alone(prompt_of(10), params, "a").outputs[0].token_ids
    assert alone(prompt_of(10), params, "b").outputs[0].token_ids == first
    other = dataclasses.replace(params, seed=6)
    assert alone(prompt_of(10), other, "a").outputs[0].token_ids != first


def test_without_a_seed_it_is_the_engine_and_the_request_that_count() -> None:
    def answers(seed: int) -> list[tuple[int, ...]]:
        engine, _, _ = make_engine(seed=seed)
        for _ in range(2):
            engine.submit(Ask(prompt_of(10), SamplingParams(max_tokens=30)))
        outputs = finish(engine)
        return [outputs[request_id].outputs[0].token_ids for request_id in "01"]

    assert answers(1) == answers(1)
    assert answers(1)[0] != answers(1)[1]
    assert answers(1) != answers(2)


def test_logprobs_are_those_of_the_chosen_and_the_best() -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3)
    (completion,) = alone(prompt_of(10), params).outputs
    assert completion.logprobs is not None
    assert completion.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for e, t in zip(completion.logprobs, completion.token_ids, strict=True))
    )
    for entry, token in zip(completion.logprobs, completion.token_ids, strict=True):
        assert len(entry) == 3  # the chosen one is among the best
        assert next(iter(entry)) == token
        assert [item.rank for item in entry.values()] == [1, 2, 3]


def test_no_logprobs_unless_asked() -> None:
    (completion,) = alone(prompt_of(10), GREEDY).outputs
    assert completion.logprobs is None
    assert completion.cumulative_logprob is None


def test_metrics_tell_what_a_request_took() -> None:
    engine, _, _ = make_engine(max_num_batched_tokens=16)
    engine.submit(Ask(prompt_of(40), dataclasses.replace(GREEDY, max_tokens=60)))
    metrics = finish(engine)["0"].metrics
    assert metrics.num_prompt_tokens == 40
    assert metrics.num_generated_tokens == 60
    assert metrics.num_pages == metrics.num_reserved_pages == 4
    assert metrics.kv_bytes == 4 * LAYOUT.page_bytes
    assert metrics.first_scheduled_time is not None
    assert metrics.first_token_time is not None
    assert metrics.arrival_time < metrics.first_scheduled_time < metrics.first_token_time
    assert metrics.first_token_time < metrics.finished_time
    assert metrics.time_to_first_token == metrics.first_token_time - metrics.arrival_time
    prefill = metrics.first_token_time - metrics.first_scheduled_time
    assert metrics.prefill_tokens_per_second == 40 / prefill
    decode = metrics.finished_time - metrics.first_token_time
    assert metrics.decode_tokens_per_second == 59 / decode


def test_abort_frees_pages_at_once_wherever_the_request_is() -> None:
    engine, _, _ = make_engine(pages=8, max_num_batched_tokens=8, max_num_seqs=2)
    for seed in range(3):
        engine.submit(Ask(prompt_of(20, seed), GREEDY))
    engine.step()
    waiting, prefilling = engine.abort("2"), engine.abort("1")
    assert waiting is not None
    assert waiting.outputs[0].finish_reason == "abort"
    assert waiting.metrics.num_reserved_pages == 0
    assert prefilling is not None
    assert prefilling.outputs[0].token_ids == ()
    assert pages_in_use(engine) == 1
    for _ in range(4):
        engine.step()
    decoding = engine.abort("0")
    assert decoding is not None
    assert list(decoding.outputs[0].token_ids) == greedy(prompt_of(20), 3)
    assert pages_in_use(engine) == 0
    assert not engine.has_unfinished
    assert engine.abort("0") is None
    assert engine.step() == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty: it needs at least one token"),
        ([3, -1], "token id -1 is not in the vocabulary: ids go from 0 to 100"),
        ([3, 101], "token id 101 is not in the vocabulary: ids go from 0 to 100"),
        ([1 << 40], "token id 1099511627776 is not in the vocabulary"),
        ([1 << 70], "must be a list of integers"),
        ([1.5], "must be a list of integers"),
        ([True], "must be a list of integers"),
        (["a"], "must be a list of integers"),
        ([[1, 2]], "must be a list of integers"),
        ([[1, 2], [3]], "must be a list of integers"),
        (prompt_of(200), "the prompt has 200 tokens, but prompt and answer together may have 200"),
    ],
)
def test_prompts_that_are_refused(prompt: list[int], message: str) -> None:
    engine, _, _ = make_engine(max_model_len=200)
    with pytest.raises(RequestError, match=message):
        engine.submit(Ask(prompt, GREEDY))
    assert not engine.has_unfinished


@pytest.mark.parametrize(("length", "max_tokens"), [(97, None), (97, 1), (60, 38)])
def test_a_prompt_that_the_pool_can_never_hold(length: int, max_tokens: int | None) -> None:
    engine, _, _ = make_engine(pages=3)
    with pytest.raises(
        RequestError,
        match=rf"the prompt's {length} tokens.* need 4 pages of 32, but the KV cache has 3 "
        r"\(12 KiB at 128 bytes a token\): raise --kv-cache-memory",
    ):
        engine.submit(Ask(prompt_of(length), SamplingParams(max_tokens=max_tokens)))


def test_a_request_id_is_used_once_at_a_time() -> None:
    engine, _, _ = make_engine()
    engine.submit(Ask([1], GREEDY, request_id="mine"))
    with pytest.raises(RequestError, match="id 'mine' is in use"):
        engine.submit(Ask([1], GREEDY, request_id="mine"))
    finish(engine)
    assert engine.submit(Ask([1], GREEDY, request_id="mine")).request_id == "mine"


def test_stop_texts_need_a_tokenizer() -> None:
    engine, _, _ = make_engine()
    with pytest.raises(RequestError, match="stop texts need a tokenizer"):
        engine.submit(Ask([1], SamplingParams(stop="x")))


def test_a_pool_below_one_sequence() -> None:
    pool = PagePool(LAYOUT, 3)
    check_pool(pool, 96)
    with pytest.raises(ConfigError, match=r"--max-model-len 97 needs 4 pages \(16 KiB\).* has 3"):
        check_pool(pool, 97)
