"""Both ways to hold rows hold the same rows."""

from __future__ import annotations

import numpy as np

from kvreuse.kv.layout import KVLayout
from kvreuse.study.figures.holders import Concatenation, Pages, row_of
from kvreuse.study.figures.pool_load import load

LAYOUT = KVLayout.uniform(num_layers=2, num_kv_heads=3, head_dim=16)


def test_pages_hold_what_joined_arrays_hold() -> None:
    joined, pages = Concatenation(LAYOUT, 80), Pages(LAYOUT, 80)
    arrays, table = joined.open(), pages.open()
    random = np.random.default_rng(0)
    for _ in range(70):
        row = random.integers(0, 1 << 16, row_of(LAYOUT).shape, dtype=np.uint16)
        joined.append(arrays, row)
        pages.append(table, row)
    assert pages.taken(table) == 3 * LAYOUT.page_bytes
    assert joined.taken(arrays) == 70 * LAYOUT.bytes_per_token
    for index, array in enumerate(arrays):
        assert array.shape == (3, 70, 16)
        np.testing.assert_array_equal(pages.rows(table, index // 2, index % 2), array)
    pages.close(table)
    assert pages.taken(table) == 0


def test_a_load_counts_the_tokens_that_are_held() -> None:
    found = load("pool", LAYOUT, slots=2, longest=40, rounds=80)
    assert found["rounds"] == list(range(8, 81, 8))
    assert found["live_bytes"][0] == 2 * 8 * LAYOUT.bytes_per_token
    assert max(found["live_bytes"]) <= 2 * 40 * LAYOUT.bytes_per_token
    assert min(found["live_bytes"][1:]) < max(found["live_bytes"])  # some have ended
