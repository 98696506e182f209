"""The ends and the texts of answers: scripted logits, a real tokenizer, a real engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import CompletionOutput, Delta
from kvreuse.api.sampling_params import SamplingParams
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer

from ..paging import Logits, make_engine, steps

PROMPT = [1, 2, 3]
PARAMS = SamplingParams(temperature=0, max_tokens=100)


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Iterator[Tokenizer]:
    """The real model's."""
    with open_checkpoint(model_path) as checkpoint:
        yield Tokenizer(checkpoint.vocabulary)


class Script:
    """Logits that say a text, token by token, then end of sequence again and again."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self.tokenizer = tokenizer
        self.ids = tokenizer.encode(text)
        self.eos = tokenizer.eos_token_ids[0]

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        """The script's next token first, end of sequence second, token 100 third."""
        assert tokens[: len(PROMPT)] == tuple(PROMPT)
        logits = np.zeros(self.tokenizer.vocab_size, dtype=np.float32)
        logits[[100, self.eos]] = 1, 2
        place = len(tokens) - len(PROMPT)
        if place < len(self.ids):
            logits[self.ids[place]] = 3
        return logits

    def say(self, params: SamplingParams) -> tuple[CompletionOutput, list[Delta]]:
        """The answer, and the deltas that it came in."""
        engine, _, _ = make_engine(
            logits_of=self, tokenizer=self.tokenizer, vocab_size=self.tokenizer.vocab_size
        )
        engine.submit(Ask(PROMPT, params))
        deltas = list(steps(engine))
        assert deltas[-1].output is not None
        (completion,) = deltas[-1].output.outputs
        assert "".join(delta.text for delta in deltas) == completion.text
        return completion, deltas


def test_end_of_sequence_ends_the_answer_without_text(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "All is well.")
    completion, _ = script.say(PARAMS)
    assert completion.text == "All is well."
    assert list(completion.token_ids) == [*script.ids, script.eos]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_every_end_of_sequence_token_ends_it(tokenizer: Tokenizer) -> None:
    for eos in tokenizer.eos_token_ids:
        script = Script(tokenizer, "Well.")
        script.eos = eos
        completion, _ = script.say(PARAMS)
        assert completion.text == "Well."
        assert (completion.token_ids[-1], completion.finish_reason) == (eos, "stop")


def test_ignore_eos_goes_on(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Well.")
    params = dataclasses.replace(PARAMS, ignore_eos=True, max_tokens=8)
    completion, _ = script.say(params)
    rest = [script.eos] * (8 - len(script.ids))
    assert list(completion.token_ids) == script.ids + rest
    assert (completion.text, completion.finish_reason) == ("Well.", "length")
    shown, _ = script.say(dataclasses.replace(params, skip_special_tokens=False))
    assert shown.text == "Well." + tokenizer.token_text(script.eos) * len(rest)


def test_a_stop_text_across_tokens_is_cut_off(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Once upon a time, there was a fox.")
    completion, deltas = script.say(dataclasses.replace(PARAMS, stop=["time, there w", "zzz"]))
    assert completion.text == "Once upon a "
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "time, there w")
    assert tokenizer.decode(completion.token_ids) == "Once upon a time, there was"
    assert [delta.text for delta in deltas][:2] == ["Once", " upon"]  # not held back


def test_a_stop_text_may_be_left_in(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Once upon a time, there was a fox.")
    params = dataclasses.replace(PARAMS, stop="time, there w", include_stop_str_in_output=True)
    assert script.say(params)[0].text == "Once upon a time, there w"


def test_half_a_stop_text_at_the_end_is_given_out(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Once upon a time, there was a fox.")
    params = dataclasses.replace(PARAMS, stop="time, there is", max_tokens=6)
    completion, deltas = script.say(params)
    assert completion.text == tokenizer.decode(script.ids[:6])
    assert completion.finish_reason == "length"
    assert [delta.text for delta in deltas] == ["Once", " upon", " a", " ", "", "time, there"]


def test_a_stop_text_completed_by_the_last_token_counts(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Once upon a time")
    params = dataclasses.replace(PARAMS, stop="time", max_tokens=len(script.ids))
    assert script.say(params)[0].finish_reason == "stop"


def test_the_text_of_a_stop_token_is_left_out(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "one two three")
    params = dataclasses.replace(PARAMS, stop_token_ids=script.ids[1:2])
    completion, _ = script.say(params)
    assert completion.text == "one"
    assert list(completion.token_ids) == script.ids[:2]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", script.ids[1])
    included, _ = script.say(dataclasses.replace(params, include_stop_str_in_output=True))
    assert included.text == "one two"


def test_before_min_tokens_neither_ids_nor_texts_end_it(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "a b")
    completion, _ = script.say(dataclasses.replace(PARAMS, min_tokens=6, stop=" b"))
    assert len(script.ids) == 2
    # The script ends after two tokens; the third best token is chosen until it may end.
    assert list(completion.token_ids) == [*script.ids, *[100] * 4, script.eos]
    assert completion.text == "a b" + tokenizer.token_text(100) * 4


def test_logprobs_name_the_tokens(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Well.")
    completion, _ = script.say(dataclasses.replace(PARAMS, logprobs=2))
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert list(first) == [script.ids[0], script.eos]
    assert first[script.ids[0]].decoded_token == "Well"
    total = np.log(np.exp(3) + np.exp(2) + np.exp(1) + tokenizer.vocab_size - 3)
    assert first[script.ids[0]].logprob == pytest.approx(3 - total)
    assert first[script.eos].logprob == pytest.approx(2 - total)


def test_an_aborted_answer_has_the_text_so_far(tokenizer: Tokenizer) -> None:
    script = Script(tokenizer, "Once upon a time")
    engine, _, _ = make_engine(
        logits_of=script, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size
    )
    engine.submit(Ask(PROMPT, dataclasses.replace(PARAMS, stop="upon!")))
    engine.step()
    engine.step()
    output = engine.abort("0")
    assert output is not None
    (completion,) = output.outputs
    assert (completion.text, completion.finish_reason) == ("Once upon", "abort")
