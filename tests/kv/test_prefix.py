"""PrefixIndex: matching, duplicates, and removal."""

from __future__ import annotations

import gc
import random
import sys
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.keys import KEY_BYTES, page_key, root_key, shared_tokens, token_bytes, token_ids
from kvreuse.kv.pool import PageError
from kvreuse.kv.prefix import PrefixIndex
from kvreuse.kv.roots import Root

PAGE = 4
SPACE = b"namespace"
SOME = st.lists(st.integers(0, 2), max_size=4 * PAGE)


def make_index() -> PrefixIndex:
    return PrefixIndex(SPACE, 300, PAGE)


def put(index: PrefixIndex, ids: list[int], page: int, salt: str | None = None) -> list[int]:
    """Insert ``ids`` as pages ``page``, ``page + 1``, ...; returns the pages that stand for it."""
    root = index.root(salt)
    node = root.node
    pages: list[int] = []
    for start in range(0, len(ids), PAGE):
        node, _ = index.insert(node, token_bytes(ids[start : start + PAGE]), page + len(pages))
        pages.append(node)
    index.check()
    return pages


def found(index: PrefixIndex, ids: list[int], salt: str | None = None) -> tuple[list[int], int]:
    """(full pages, rows of a further page) that match."""
    match = index.match(salt, token_bytes(ids))
    partial = match.partial
    return list(match.nodes), partial[1] if partial else 0


def pages_of(index: PrefixIndex) -> set[int]:
    return {page for page in range(300) if page in index}


@settings(deadline=None)
@given(st.lists(SOME, max_size=6), SOME)
def test_the_longest_start_is_found_at_every_row(known: list[list[int]], ids: list[int]) -> None:
    index = make_index()
    for order, tokens in enumerate(known):
        put(index, tokens, 10 * order)
    full, rows = found(index, ids)
    expected = 0
    for tokens in known:
        shared = 0
        while shared < min(len(tokens), len(ids)) and tokens[shared] == ids[shared]:
            shared += 1
        expected = max(expected, shared)
    assert len(full) * PAGE + rows == expected
    index.check()


@pytest.mark.parametrize("rows", range(9))
def test_prompts_that_part_at_every_row(rows: int) -> None:
    index = make_index()
    put(index, list(range(8)), 0)
    assert found(index, [*range(rows), 99, 98, 97]) == ([0, 1][: rows // PAGE], rows % PAGE)


def test_the_page_that_shares_most_rows_among_many() -> None:
    index = make_index()
    for page in range(256):
        put(index, [page // 64, page // 16 % 4, page // 4 % 4, page % 4], page)
    for page in range(256):
        ids = [page // 64, page // 16 % 4, page // 4 % 4]
        match = index.match(None, token_bytes([*ids, 9]))
        assert match.partial is not None
        assert match.partial[1] == 3
        assert match.partial[0] // 4 == page // 4
    assert found(index, [9, 0, 0, 0]) == ([], 0)


def test_a_duplicate_is_not_stored() -> None:
    index = make_index()
    assert put(index, [1, 2, 3, 4, 5, 6, 7, 8], 0) == [0, 1]
    assert put(index, [1, 2, 3, 4, 5, 6, 7, 9], 10) == [0, 11]
    assert put(index, [1, 2, 3, 4, 5, 6], 20) == [0, 1]
    assert pages_of(index) == {0, 1, 11}


def test_a_tail_gives_way_to_what_covers_it() -> None:
    index = make_index()
    root = index.root(None)
    assert index.insert(root.node, token_bytes([1]), 0) == (0, -1)
    assert index.insert(root.node, token_bytes([1, 2]), 1) == (1, 0)
    assert index.insert(root.node, token_bytes([1, 3]), 2) == (2, -1)
    assert index.insert(root.node, token_bytes([1, 2, 3, 4]), 3) == (3, 1)
    assert index.insert(root.node, token_bytes([1, 2, 3]), 4) == (3, -1)
    assert pages_of(index) == {2, 3}
    assert found(index, [1, 2, 9]) == ([], 2)
    index.check()


def test_a_tail_is_never_a_full_page() -> None:
    index = make_index()
    put(index, [1, 2, 3, 4, 5, 6], 0)
    assert found(index, [1, 2, 3, 4, 5, 6, 7, 8]) == ([0], 2)
    assert [index.is_full(page) for page in (0, 1)] == [True, False]


def test_salts_have_nothing_in_common() -> None:
    index = make_index()
    for page, salt in enumerate((None, "", "a")):
        assert found(index, [1, 2, 3, 4], salt) == ([], 0)
        assert index.has_first_page(token_bytes([1, 2, 3, 4])) == (page > 0)
        assert put(index, [1, 2, 3, 4], page, salt) == [page]
    assert found(index, [1, 2, 3, 4], "a") == ([2], 0)
    for page in range(3):
        assert index.has_first_page(token_bytes([1, 2, 3, 4]))
        index.remove(page)
        index.check()
    assert not index.has_first_page(token_bytes([1, 2, 3, 4]))


def test_keys_are_the_chain_of_the_tokens() -> None:
    index = make_index()
    put(index, list(range(8)), 0, "salt")
    first = page_key(root_key(SPACE, "salt"), token_bytes(range(4)))
    second = page_key(first, token_bytes(range(4, 8)))
    assert [index.key(page) for page in (0, 1)] == [first, second]
    known = index.match("salt", token_bytes(range(4)))
    names = [int.from_bytes(key[:8], sys.byteorder) for key in (first, second)]
    assert index.next_name(known, "salt", token_bytes(range(4, 8))) == names[1] == index.names[1]
    assert list(index.names_of("salt", token_bytes(range(8)))) == names


def test_what_was_removed_is_not_found_and_its_place_can_be_taken() -> None:
    index = make_index()
    put(index, list(range(8)), 0)
    put(index, [*range(4), 9], 10)
    assert [index.is_leaf(page) for page in (0, 1, 11)] == [False, True, True]
    assert not index.only_child(0)
    index.remove(1)
    assert found(index, list(range(8))) == ([0], 0)
    assert index.only_child(0)
    assert put(index, [*range(4), 7, 7, 7, 7], 1) == [0, 2]
    assert found(index, [*range(4), 7, 7, 7, 7]) == ([0, 2], 0)
    for page in (11, 2, 0):
        index.remove(page)
        index.check()
    assert index.num_nodes == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=200, unique=True), st.randoms())
def test_siblings_in_any_order_come_and_go(numbers: list[int], order: random.Random) -> None:
    """Compare Siblings with a sorted list: exact look-ups and neighbours."""
    index = make_index()
    root = index.root(None)

    def tokens(number: int) -> bytes:
        return token_bytes([number // 64, number // 16 % 4, number // 4 % 4, number % 4])

    for page, number in enumerate(numbers):
        index.insert(root.node, tokens(number), page)
    gone = order.sample(range(len(numbers)), len(numbers) // 2)
    for page in gone:
        index.remove(page)
    index.check()
    left = sorted(tokens(n) for page, n in enumerate(numbers) if page not in gone)
    assert [index.tokens(page) for page in index.children(root.node)] == left
    for number in range(0, 200, 7):
        nearest = index.match(None, tokens(number)).nearest
        exact = found(index, list(token_ids(tokens(number))))
        assert bool(exact[0]) == (tokens(number) in left)
        if not exact[0] and left:
            best = max(shared_tokens(its, tokens(number)) for its in left)
            assert nearest is not None
            assert nearest[1] == best


@pytest.mark.parametrize("order", ["up", "down", "shuffled"])
def test_many_siblings_are_few_steps_away(order: str) -> None:
    """The depth stays below 60; for 4,096 pages the least possible is 12."""
    index = PrefixIndex(SPACE, 4096, PAGE)
    root = index.root(None)
    numbers = list(range(4096))
    if order == "shuffled":
        random.Random(0).shuffle(numbers)
    for page, number in enumerate(reversed(numbers) if order == "down" else numbers):
        index.insert(root.node, token_bytes([number]), page)
    left, right = index._siblings._left, index._siblings._right
    deepest, below = 0, [(root.top, 1)]
    while below:
        page, depth = below.pop()
        deepest = max(deepest, depth)
        below += [(child, depth + 1) for child in (left[page], right[page]) if child >= 0]
    assert deepest < 60


def test_a_root_lives_as_long_as_somebody_starts_there() -> None:
    index = make_index()
    root = index.root("salt")
    gone: weakref.ref[Root] = weakref.ref(root)
    index.insert(root.node, token_bytes([1]), 0)
    assert index.root("salt") is root
    del root
    gc.collect()
    assert found(index, [1, 2], "salt") == ([], 1)
    index.remove(0)
    gc.collect()
    assert gone() is None


def test_check_sees_what_is_wrong() -> None:
    index = make_index()
    put(index, list(range(8)), 0)
    put(index, [*range(4), 9], 10)
    siblings = index._siblings
    right = [(siblings._left, at) for at in (1, 11)] + [(siblings._right, at) for at in (1, 11)]
    values = [side[at] for side, at in right]
    top = index._tops[0]
    index._tops[0] = 11 if top == 1 else 1
    for side, at in right:
        side[at] = -1
    with pytest.raises(PageError, match="not reached by its tokens"):
        index.check()
    index._tops[0] = top
    for (side, at), value in zip(right, values, strict=True):
        side[at] = value
    index.check()
    siblings._left[top], siblings._right[top] = siblings._right[top], siblings._left[top]
    with pytest.raises(PageError, match="the children of page 0 are out of order"):
        index.check()
    siblings._left[top], siblings._right[top] = siblings._right[top], siblings._left[top]
    index._keys[KEY_BYTES] ^= 1
    with pytest.raises(PageError, match="page 1 has a wrong parent, depth, key or children"):
        index.check()
