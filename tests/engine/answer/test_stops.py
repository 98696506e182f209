"""Stop texts in a growing text: found where a plain search finds them, in linear time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.api.sampling_params import SamplingParams
from kvreuse.engine.answer.stops import StopTexts
from kvreuse.errors import RequestError

texts = st.text(st.sampled_from("abc"), max_size=30)
stop_lists = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=6), max_size=6)


def ended(text: str, stops: list[str]) -> str | None:
    """The longest stop text that ``text`` ends with."""
    return max((stop for stop in stops if text.endswith(stop)), key=len, default=None)


def held(text: str, stops: list[str]) -> int:
    """The longest end of ``text`` that a longer stop text starts with."""
    starts = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return max((len(start) for start in starts if text.endswith(start)), default=0)


@given(text=texts, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=4))
def test_every_end_of_a_stop_text_is_found(text: str, stops: list[str], cuts: list[int]) -> None:
    automaton, seen = StopTexts(stops), 0
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in itertools.pairwise(edges):
        piece, at = text[start:end], 0
        while (found := automaton.find(piece, at)) is not None:
            at, stop = found
            assert not any(ended(text[:one], stops) for one in range(seen + 1, start + at))
            assert stop == ended(text[: start + at], stops)
            seen = start + at
        assert not any(ended(text[:one], stops) for one in range(seen + 1, end + 1))
        assert automaton.held == held(text[:end], stops)
        seen = end


@pytest.mark.parametrize(
    ("text", "stops", "end", "stop"),
    [
        ("abcd", ("bc", "abcd"), 3, "bc"),  # complete first
        ("abcd", ("cd", "bcd"), 4, "bcd"),  # complete together: the longest
        ("aXbX", ("X",), 2, "X"),
    ],
)
def test_which_of_several_counts(text: str, stops: tuple[str, ...], end: int, stop: str) -> None:
    assert StopTexts(stops).find(text) == (end, stop)


class CountingText(str):
    """A text that counts how often a character of it is looked at."""

    looked = 0

    def __getitem__(self, index: object) -> str:
        CountingText.looked += 1
        return super().__getitem__(index)  # type: ignore[index]


@pytest.mark.parametrize("stop", ["a" * 16000 + "b", "ab" * 8000 + "c"])
def test_a_token_costs_its_own_characters(stop: str) -> None:
    """A text that nearly is a stop text of 16,000 characters, one character a token."""
    automaton, text = StopTexts([stop]), stop[:-1] * 2
    CountingText.looked = 0
    for character in text:
        assert automaton.find(CountingText(character)) is None
    assert CountingText.looked == len(text)
    assert automaton.find(stop[-1]) == (1, stop)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (["x" * 20000], "stop has 20000 characters in all, at most 16384 are possible"),
        (["ab" * 60] * 200, "stop has 24000 characters in all, at most 16384 are possible"),
    ],
)
def test_stop_texts_are_bounded(stop: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(stop=stop)
