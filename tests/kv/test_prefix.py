"""PrefixIndex: what it finds, what it keeps once, what it forgets first."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreuse.kv.keys import page_key, root_key, token_bytes
from kvreuse.kv.pool import PageError
from kvreuse.kv.prefix import Node, PrefixIndex

PAGE = 4
SPACE = b"namespace"
SOME = st.lists(st.integers(0, 2), max_size=4 * PAGE)


def make_index() -> PrefixIndex:
    return PrefixIndex(SPACE, PAGE)


def put(index: PrefixIndex, ids: list[int], page: int, salt: str | None = None) -> list[int]:
    """Insert ``ids`` as pages ``page``, ``page + 1``, ...; returns the pages that stand for it."""
    node = index.root(salt)
    pages: list[int] = []
    for start in range(0, len(ids), PAGE):
        node, _ = index.insert(node, token_bytes(ids[start : start + PAGE]), page + len(pages))
        pages.append(node.page)
    index.check()
    return pages


def found(index: PrefixIndex, ids: list[int], salt: str | None = None) -> tuple[list[int], int]:
    """(full pages, rows of a further page) that match."""
    match = index.match(index.root(salt), token_bytes(ids))
    partial = match.partial
    return [node.page for node in match.nodes], partial[1] if partial else 0


def rest(index: PrefixIndex, *pages: int) -> None:
    """``pages`` are used no more, in this order."""
    index.idle.update(dict.fromkeys(pages))
    index.check()


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
        match = index.match(index.root(None), token_bytes([*ids, 9]))
        assert match.partial is not None
        assert match.partial[1] == 3
        assert match.partial[0].page // 4 == page // 4
    assert found(index, [9, 0, 0, 0]) == ([], 0)


def test_a_duplicate_is_not_stored() -> None:
    index = make_index()
    assert put(index, [1, 2, 3, 4, 5, 6, 7, 8], 0) == [0, 1]
    assert put(index, [1, 2, 3, 4, 5, 6, 7, 9], 10) == [0, 11]
    assert put(index, [1, 2, 3, 4, 5, 6], 20) == [0, 1]
    assert set(index.nodes) == {0, 1, 11}


def test_a_tail_gives_way_to_what_covers_it() -> None:
    index = make_index()
    root = index.root(None)
    short, _ = index.insert(root, token_bytes([1]), 0)
    longer, covered = index.insert(root, token_bytes([1, 2]), 1)
    assert covered is short
    other, covered = index.insert(root, token_bytes([1, 3]), 2)
    assert covered is None
    full, covered = index.insert(root, token_bytes([1, 2, 3, 4]), 3)
    assert covered is longer
    assert index.nodes == {2: other, 3: full}
    assert found(index, [1, 2, 9]) == ([], 2)
    index.check()


def test_a_tail_is_never_a_full_page() -> None:
    index = make_index()
    put(index, [1, 2, 3, 4, 5, 6], 0)
    assert found(index, [1, 2, 3, 4, 5, 6, 7, 8]) == ([0], 2)
    assert index.nodes[1].key == b""


def test_salts_have_nothing_in_common() -> None:
    index = make_index()
    for page, salt in enumerate((None, "", "a")):
        assert found(index, [1, 2, 3, 4], salt) == ([], 0)
        assert index.is_first_page(token_bytes([1, 2, 3, 4])) == (page > 0)
        assert put(index, [1, 2, 3, 4], page, salt) == [page]
    assert found(index, [1, 2, 3, 4], "a") == ([2], 0)
    rest(index, 0, 1, 2)
    index.evict(3)
    assert not index.is_first_page(token_bytes([1, 2, 3, 4]))


def test_keys_are_the_chain_of_the_tokens() -> None:
    index = make_index()
    put(index, list(range(8)), 0, "salt")
    first = page_key(root_key(SPACE, "salt"), token_bytes(range(4)))
    second = page_key(first, token_bytes(range(4, 8)))
    assert [index.nodes[page].key for page in (0, 1)] == [first, second]
    assert index.next_key(index.nodes[0], token_bytes(range(4, 8))) == second
    rest(index, 1, 0)
    assert index.evict(2) == [(second, 1), (first, 0)]


def test_pages_that_rested_longest_go_first_and_leaves_before_what_they_continue() -> None:
    index = make_index()
    put(index, list(range(8)), 0)
    put(index, [*range(4), 9], 10)
    rest(index, 1)
    rest(index, 11, 0)
    assert [page for _, page in index.evict(2)] == [1, 11]
    assert found(index, list(range(8))) == ([0], 0)
    assert [page for _, page in index.evict(1)] == [0]
    assert not index.nodes
    index.check()


def test_a_root_lives_as_long_as_somebody_starts_there() -> None:
    index = make_index()
    root = index.root("salt")
    gone: weakref.ref[Node] = weakref.ref(root)
    index.insert(root, token_bytes([1]), 0)
    assert index.root("salt") is root
    del root
    assert found(index, [1, 2], "salt") == ([], 1)
    rest(index, 0)
    index.evict(1)
    gc.collect()
    assert gone() is None


def test_check_sees_what_is_wrong() -> None:
    index = make_index()
    put(index, list(range(8)), 0)
    put(index, [*range(4), 9], 10)
    index.idle.update(dict.fromkeys([0, 1, 11]))
    with pytest.raises(PageError, match="page 0 would be evicted before one that continues it"):
        index.check()
    index.idle.clear()
    node = index.nodes[0]
    node.children.reverse()
    with pytest.raises(PageError, match="the children of page 0 are out of order"):
        index.check()
    node.children.reverse()
    node.children[0].key = b"another"
    with pytest.raises(PageError, match="page 1 is not what its place in the index says"):
        index.check()
    node.children[0].key = node.children[0].key = page_key(node.key, token_bytes(range(4, 8)))
    index.nodes[5] = index.nodes.pop(1)
    with pytest.raises(PageError, match="not where its tokens lead"):
        index.check()
