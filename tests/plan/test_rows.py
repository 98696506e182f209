"""Bytes of a row: the formulas of the codecs, worked by hand."""

from __future__ import annotations

import pytest

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.codec import make_codec
from kvreuse.kv.layout import KVLayout
from kvreuse.plan.rows import CODECS, codec_named, row_bytes


@pytest.mark.parametrize(
    ("codec", "width", "key", "value"),
    [
        ("bf16", 64, 128, 128),
        ("int8", 64, 68, 68),
        ("int4", 64, 32 + 4, 32 + 4),
        ("int4", 128, 64 + 8, 64 + 8),
        ("int4", 80, 40 + 8, 48 + 8),  # two groups; values in three units of 32
        ("int4", 16, 8 + 4, 16 + 4),
        ("k8v4", 128, 132, 72),
        ("int8", 576, 580, 580),
    ],
)
def test_a_row(codec: str, width: int, key: int, value: int) -> None:
    assert (row_bytes(codec, "key", width), row_bytes(codec, "value", width)) == (key, value)


def test_an_unknown_codec_lists_those_there_are() -> None:
    assert codec_named("k8v4") == "k8v4"
    with pytest.raises(
        ConfigError, match=r"'fp8' is not a codec to plan .known: bf16, int8, int4, k8v4"
    ):
        codec_named("fp8")


@pytest.mark.parametrize("name", CODECS)
def test_the_pages_of_the_engine_have_these_rows(name: str) -> None:
    codec = make_codec(name, num_layers=3, num_kv_heads=2, head_dim=48)
    layout = KVLayout(num_layers=3, num_kv_heads=2, head_dim=48, codec=codec)
    rows = row_bytes(name, "key", 48) + row_bytes(name, "value", 48)
    assert layout.page_bytes == 3 * 2 * 32 * rows
