"""The law: a token's key and value, and so its logits, are a function of the tokens alone.

Everything is compared with ``==``: on logits, and where it says so on the bytes of pages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvreuse.model.open import open_checkpoint
from kvreuse.ops.batch import Float32Array
from kvreuse.text.tokenizer import Tokenizer

from .kv.planes_of_pages import layer_bytes
from .kv_codecs import REAL_CODECS
from .sequences import Machine
from .truth import standard_text

LONG = 600  # more than one part of 512 tokens, and no multiple of anything
SHORT = 75


@pytest.fixture(scope="module")
def codec_model(real_model: Path, tiny_model: Path, codec: str) -> Path:
    """Every real model that is asked for, not the default one only."""
    return real_model if codec in REAL_CODECS else tiny_model


@pytest.fixture(scope="module")
def ids(codec_model: Path) -> list[int]:
    with open_checkpoint(codec_model) as checkpoint:
        return Tokenizer(checkpoint.vocabulary).encode(standard_text()[:20_000])


@pytest.fixture(scope="module")
def machine(codec_model: Path, codec: str) -> Machine:
    """The model on this machine's best path."""
    return Machine(codec_model, codec)


@pytest.fixture(scope="module")
def alone(machine: Machine, ids: list[int]) -> Float32Array:
    """The logits of the long prompt, alone, in one chunk."""
    return machine.logits(ids[:LONG])


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 256])
def test_chunks_do_not_matter(
    machine: Machine, ids: list[int], alone: Float32Array, chunk: int
) -> None:
    np.testing.assert_array_equal(machine.logits(ids[:LONG], chunk), alone)


def test_no_cache_at_all_gives_the_same(machine: Machine, ids: list[int]) -> None:
    prompt = ids[:SHORT]
    sequence = machine.sequence(prompt)
    logits = machine.step((sequence, SHORT))[0]
    answer: list[int] = []
    for _ in range(12):
        answer.append(int(logits.argmax()))
        sequence.ids.append(answer[-1])
        logits = machine.step((sequence, 1))[0]
    machine.free(sequence)
    recomputed: list[int] = []
    for i in range(12):
        recomputed.append(int(machine.logits(prompt + recomputed[:i]).argmax()))
    assert recomputed == answer
    np.testing.assert_array_equal(machine.logits(prompt + answer), logits)


def test_company_does_not_matter(machine: Machine, ids: list[int]) -> None:
    prompts = [ids[i * 97 : i * 97 + n] for i, n in enumerate((SHORT, 1, 33, 32, 130, 64))]
    expected = [machine.logits(prompt) for prompt in prompts]
    rng = np.random.default_rng(0)
    for _ in range(3):
        machine.poison()
        order = rng.permutation(len(prompts))
        sequences = [machine.sequence(prompts[i]) for i in order]
        logits = machine.step(*((s, len(s.ids)) for s in sequences))
        for row, i in enumerate(order):
            np.testing.assert_array_equal(logits[row], expected[i])
        machine.free(*sequences)


def test_decoding_beside_prefill_does_not_matter(machine: Machine, ids: list[int]) -> None:
    tokens = ids[: SHORT + 8]
    expected = [machine.logits(tokens[: SHORT + i + 1]) for i in range(8)]
    machine.poison()
    decoding, other = machine.sequence(tokens), machine.sequence(ids[100:400])
    machine.step((decoding, SHORT))
    for i in range(8):
        logits = machine.step((decoding, 1), (other, 30 + i))
        np.testing.assert_array_equal(logits[0], expected[i])
    machine.free(decoding, other)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_place_of_pages_does_not_matter(
    machine: Machine, ids: list[int], alone: Float32Array, seed: int
) -> None:
    np.testing.assert_array_equal(machine.logits(ids[:LONG], 256, seed), alone)


def test_the_size_of_pages_does_not_matter(
    codec_model: Path, codec: str, ids: list[int], alone: Float32Array
) -> None:
    wide = Machine(codec_model, codec, page_size=96)
    np.testing.assert_array_equal(wide.logits(ids[:LONG], 256, 3), alone)


def test_threads_do_not_matter(
    codec_model: Path, codec: str, ids: list[int], alone: Float32Array
) -> None:
    for threads in (1, 3):
        other = Machine(codec_model, codec, threads=threads)
        np.testing.assert_array_equal(other.logits(ids[:LONG], 256), alone)


def test_the_path_does_not_matter(
    codec_model: Path, codec: str, ids: list[int], machine: Machine, isa: str
) -> None:
    other = Machine(codec_model, codec, isa=isa)
    length = 2 * SHORT if codec == "auto" else LONG  # long ones once: a path may be slow
    np.testing.assert_array_equal(other.logits(ids[:length]), machine.logits(ids[:length]))
    pieces = other.logits(ids[:SHORT], 10)
    np.testing.assert_array_equal(pieces, machine.logits(ids[:SHORT]))


def test_unwritten_rows_reach_nothing(machine: Machine, ids: list[int]) -> None:
    """Every filling of a page's last tile; behind it are NaN, zeros, or bytes at random."""
    clean = {}
    for length in range(1, 34):
        clean[length] = machine.logits(ids[:length])
        assert np.isfinite(clean[length]).all()
    shape = machine.pool.data.shape
    for filling in (0, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)):
        machine.pool.data[:] = filling
        sequence = machine.sequence(ids[:33])
        for length in range(1, 34):
            np.testing.assert_array_equal(machine.step((sequence, 1))[0], clean[length])
        machine.free(sequence)


def test_a_layer_depends_on_no_later_layer(machine: Machine, ids: list[int]) -> None:
    """Damage the keys of one layer: a new token's rows below and in it stay, those above change."""
    layer, n = len(machine.layout.layers) // 2, 40

    def layers_after_next_token(damage: bool) -> list[bytes]:
        machine.poison()
        sequence = machine.sequence(ids[: n + 1])
        machine.step((sequence, n))
        layout = machine.layout
        if damage:
            start = layout.plane_offset(layer, "key", 0)
            stop = layout.plane_offset(layer, "value", 0)
            machine.pool.data[sequence.table[0], start:stop] ^= 0x15
        machine.step((sequence, 1))
        page = machine.pool.data[sequence.table[1]].copy()
        machine.free(sequence)
        return [page[layer_bytes(layout, i)].tobytes() for i in range(len(layout.layers))]

    whole, damaged = layers_after_next_token(False), layers_after_next_token(True)
    assert [i for i, pair in enumerate(zip(whole, damaged, strict=True)) if pair[0] != pair[1]] == [
        *range(layer + 1, len(machine.layout.layers))
    ]
