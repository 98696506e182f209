"""Streams of text from real tokens: nothing lost, nothing taken back, stops found wherever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.engine.answer.detokenize import TextStream
from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import IncrementalDecoder, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Iterator[Tokenizer]:
    """The real model's."""
    with open_checkpoint(model_path) as checkpoint:
        yield Tokenizer(checkpoint.vocabulary)


def plain_cut(text: str, stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """(text up to the first stop to be complete, that stop), one character at a time."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


texts = st.text(st.sampled_from("ab c\n.é€🙂"), max_size=25)
stop_lists = st.lists(st.text(st.sampled_from("ab c\n.é🙂"), min_size=1, max_size=4), max_size=3)


@given(text=texts, stops=stop_lists, include=st.booleans())
def test_a_stream_is_the_text_up_to_the_first_stop(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    stream = TextStream(IncrementalDecoder(tokenizer), tuple(stops), include_stop=include)
    expected, stopped_by = plain_cut(text, stops, include=include)
    emitted = ""
    for token in tokenizer.encode(text):
        emitted += stream.push(token)
        assert expected.startswith(emitted)
        if stream.stopped_by is not None:
            break
    assert stream.stopped_by == stopped_by
    assert emitted + stream.finish() == stream.text == expected


@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_any_tokens_make_the_text_of_all(tokenizer: Tokenizer, ids: list[int]) -> None:
    stream = TextStream(IncrementalDecoder(tokenizer))
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == stream.text == tokenizer.decode(ids)


@given(text=texts, stops=stop_lists)
def test_no_more_is_held_back_than_must_be(
    tokenizer: Tokenizer, text: str, stops: list[str]
) -> None:
    stream = TextStream(IncrementalDecoder(tokenizer), tuple(stops))
    decoder, decoded, emitted = IncrementalDecoder(tokenizer), "", ""
    for token in tokenizer.encode(text):
        decoded += decoder.push(token)
        emitted += stream.push(token)
        if stream.stopped_by is not None:
            return
        held = decoded[len(emitted) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_character_comes_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🦥")
    assert len(ids) > 1
    stream = TextStream(IncrementalDecoder(tokenizer))
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🦥"]
    half = TextStream(IncrementalDecoder(tokenizer))
    assert half.push(ids[0]) == ""
    assert half.finish() == "\ufffd"


def test_stops_within_min_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(letter)[0] for letter in "axbxc"]
    stream = TextStream(IncrementalDecoder(tokenizer), ("x",), min_tokens=2)
    assert [stream.push(token) for token in ids[:4]] == ["a", "x", "b", ""]
    assert stream.stopped_by == "x"
    assert stream.text == "axb"
    straddling = TextStream(IncrementalDecoder(tokenizer), ("axb",), min_tokens=2)
    assert [straddling.push(token) for token in ids[:3]] == ["", "", ""]
    assert straddling.stopped_by == "axb"
