"""Ghosts, compared with a plain list of the latest evictions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.evict.ghosts import Ghosts

CAPACITY = 6
NAMES = list(range(13))  # 0: a tail
SOME = st.lists(st.sampled_from(NAMES), max_size=4)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(NAMES), max_size=4)), max_size=30)
)
def test_the_latest_evictions_are_found_until_they_come_back(
    calls: list[tuple[bool, list[int]]],
) -> None:
    ghosts, window, clock = Ghosts(CAPACITY), list[tuple[int, int, bool]](), 0
    for evicts, pages in calls:
        names = list(dict.fromkeys(page for page in pages if page)) + [0] * (0 in pages)
        if evicts:
            names = [name for name in names if name not in ghosts]  # it is not resident twice
            stamps = list(range(clock, clock + len(NAMES)))
            clock += len(NAMES)
            old = ghosts.add(names, NAMES, stamps, [name % 5 for name in NAMES], 1)
            window += [(name, stamps[name], True) for name in names]
            gone, window = window[:-CAPACITY], window[-CAPACITY:]
            expected = [(stamp, name % 5) for name, stamp, away in gone if away]
            assert list(zip(*old, strict=True)) == expected
        else:
            back = dict(ghosts.pop(names, NAMES))
            here = {name: stamp for name, stamp, away in window if away and name}
            assert back == {name: (here[name], name % 5, 1) for name in names if name in here}
            window = [(n, s, away and not (n and n in names)) for n, s, away in window]
        for name in NAMES:
            assert (name in ghosts) == any(n == name and away and n for n, _, away in window)


def test_names_that_are_all_equal_are_one() -> None:
    ghosts = Ghosts(200)
    ghosts.add(range(150), [7] * 150, range(150), [0] * 150, 0)
    assert 7 in ghosts
    assert ghosts.pop([3], [7] * 150) == [(3, (149, 0, 0))]
    assert 7 not in ghosts
