"""How far two texts are alike, against a loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvreuse.text.alike import shared_end, shared_start

TEXTS = st.text("ab", max_size=8)


@given(TEXTS, TEXTS)
def test_shared_start_and_end(one: str, other: str) -> None:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert shared_start(one, other) == count
    assert shared_end(one[::-1], other[::-1]) == count
