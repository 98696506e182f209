"""LayerShape and ModelShape: what is said of each layer, and what follows where all are alike."""

from __future__ import annotations

import dataclasses

import pytest

from kvreuse.shape import LayerShape, ModelShape, RopeSpec, attention

SHAPE = ModelShape(
    architecture="llama",
    layers=(attention(2, 32, 9), attention(2, 32)) * 2,
    context_length=512,
    hidden_size=64,
    intermediate_size=96,
    num_heads=6,
    vocab_size=320,
    rms_norm_eps=1e-5,
    rope=RopeSpec("half", 1e4, 32),
)


def test_the_rows_of_a_token() -> None:
    assert LayerShape(3, 64, 32).rows == (("key", 3, 64), ("value", 3, 32))
    assert LayerShape(1, 576).rows == (("key", 1, 576),)  # latent attention
    assert LayerShape(conv=5, state=7).rows == LayerShape().rows == ()


def test_tokens_kept() -> None:
    assert [attention(1, 16).kept(n) for n in (0, 5, 100)] == [0, 5, 100]
    assert [attention(1, 16, 9).kept(n) for n in (0, 5, 9, 100)] == [0, 5, 9, 9]


def test_what_equal_layers_have_in_common() -> None:
    assert (SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim) == (4, 2, 32)
    assert SHAPE.windows == (9, None, 9, None)
    assert (SHAPE.group_size, SHAPE.q_size, SHAPE.kv_size) == (3, 192, 64)


def test_only_layers_that_see_all_add_work_with_every_token() -> None:
    weights = 4 * 64 * (2 * 192 + 2 * 64 + 3 * 96)
    assert SHAPE.attention_growth == 2 * 2 * 192 / weights
    windows = tuple(dataclasses.replace(layer, window=9) for layer in SHAPE.layers)
    assert dataclasses.replace(SHAPE, layers=windows).attention_growth == 0


@pytest.mark.parametrize(
    "other", [attention(1, 32), attention(2, 64), LayerShape(2, 32, 16), LayerShape()]
)
def test_layers_that_differ_have_nothing_in_common(other: LayerShape) -> None:
    shape = dataclasses.replace(SHAPE, layers=(*SHAPE.layers, other))
    for name in ("num_kv_heads", "head_dim", "q_size", "kv_size", "group_size"):
        with pytest.raises(ValueError, match="ask each of them"):
            getattr(shape, name)


def test_widths_of_keys_and_values_that_differ_are_no_head_dim() -> None:
    with pytest.raises(ValueError, match="ask each of them"):
        dataclasses.replace(SHAPE, layers=(LayerShape(2, 32, 16),)).head_dim  # noqa: B018
