"""The oracle and the comparison, checked before anything is measured by them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kvreuse.model.open import open_checkpoint
from kvreuse.text.tokenizer import Tokenizer

from .model.gguf.gguf_files import write_gguf, write_tiny
from .oracle import Fidelity, Oracle, compare
from .oracle.dequantize import SUPER_BLOCK_BYTES, dequantize
from .oracle.rope import Scaling


@pytest.fixture(scope="module")
def oracle(model_path: Path) -> Oracle:
    return Oracle(model_path)


def test_weights_of_the_real_file_are_those_of_the_gguf_package(oracle: Oracle) -> None:
    kinds = set()
    for name, tensor in oracle.tensors.items():
        rows = slice(0, 4096)  # all of every tensor but the embedding
        data = tensor.data[rows] if len(tensor.shape) > 1 else tensor.data[None]
        expected = gguf.quants.dequantize(data, tensor.tensor_type)
        np.testing.assert_array_equal(oracle.weight(name, rows), expected, err_msg=name)
        kinds.add(tensor.tensor_type.name)
    assert kinds == {"Q4_1", "Q8_0", "F32"}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_of_other_formats(kind: str) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    weights = np.random.default_rng(0).standard_normal((12, 96)).astype(np.float32)
    raw = gguf.quants.quantize(weights, type_)
    expected = gguf.quants.dequantize(raw, type_).reshape(12, 96)
    np.testing.assert_array_equal(dequantize(kind, raw.view(np.uint8), 12, 96), expected)


@pytest.mark.parametrize(("kind", "halves"), [("Q4_K", (0, 2)), ("Q5_K", (0, 2)), ("Q6_K", (208,))])
def test_weights_of_wide_formats(kind: str, halves: tuple[int, ...]) -> None:
    """The package does not write these, but reads them: random blocks, with numbers for scales."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (12, 2, SUPER_BLOCK_BYTES[kind]), dtype=np.uint8)
    for at in halves:
        raw[..., at : at + 2] = rng.normal(0, 0.1, (12, 2, 1)).astype("<f2").view(np.uint8)
    expected = gguf.quants.dequantize(raw.reshape(12, -1), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantize(kind, raw, 12, 512), expected)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Q2_K"):
        dequantize("Q2_K", np.zeros(84, dtype=np.uint8), 1, 256)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "phi2"}, {})
    with pytest.raises(NotImplementedError, match="phi2"):
        Oracle(path)


@pytest.mark.parametrize("window", [1, 8, 20])
def test_a_window_ends_where_it_should(tmp_path: Path, window: int) -> None:
    oracle = Oracle(write_tiny(tmp_path / "m.gguf", layers=1, window=window))
    ids = list(range(10, 40))
    logits, first = oracle.logits(ids)[-1], 30 - window
    np.testing.assert_array_equal(oracle.logits([5] * first + ids[first:])[-1], logits)
    changed = oracle.logits([5] * (first + 1) + ids[first + 1 :])[-1]
    assert np.abs(changed - logits).max() > 1e-3


def test_logits_in_chunks_are_the_logits(tmp_path: Path) -> None:
    oracle = Oracle(write_tiny(tmp_path / "m.gguf", "gemma3"))
    ids = list(range(20))
    chunks = list(oracle.chunks(ids, 8))
    assert [len(chunk) for chunk in chunks] == [8, 8, 4]
    np.testing.assert_allclose(np.concatenate(chunks), oracle.logits(ids), atol=1e-4)


class TestScaling:
    def test_llama3_slows_long_waves(self) -> None:
        """Llama 3.1: waves of up to 2,048 tokens keep their pace, those from 8,192 none of it."""
        found = Scaling("llama3", 8.0, 8192).divisors(5e5, 128)
        waves = 2 * np.pi * 5e5 ** (np.arange(64) / 64)
        assert (found[waves < 2048] == 1).all()
        assert (found[waves > 8192] == 8).all()
        between = found[(waves >= 2048) & (waves <= 8192)]
        assert len(between) == 6
        assert (np.diff(between) > 0).all()

    def test_yarn_slows_late_pairs(self) -> None:
        """Qwen 2.5's: 131,072 tokens after 32,768; queries and keys grow by 0.1 ln 4 + 1."""
        scaling = Scaling("yarn", 4.0, 32768)
        found = scaling.divisors(1e6, 128)
        turns = 32768 / (2 * np.pi * 1e6 ** (np.arange(64) / 64))
        assert (found[turns > 40] == 1).all()
        assert found[turns < 0.9] == pytest.approx(4)
        assert (np.diff(found) >= 0).all()
        assert scaling.stretch() == pytest.approx(1.1386, abs=1e-4)

    def test_an_unknown_regime_is_refused(self) -> None:
        with pytest.raises(NotImplementedError, match="longrope"):
            Scaling("longrope", 4.0, 4096).divisors(1e4, 64)


def test_the_oracle_reads_english(oracle: Oracle, model_path: Path) -> None:
    """It knows what comes next, and what it says of a prefix does not depend on what follows."""
    with open_checkpoint(model_path) as checkpoint:
        tokenizer = Tokenizer(checkpoint.vocabulary)
    ids = tokenizer.encode("The capital of France is Paris, the capital of Italy is Rome")
    logits = oracle.logits(ids)
    assert logits.dtype == np.float32
    assert tokenizer.decode([int(logits[-2].argmax())]) == " Rome"
    np.testing.assert_allclose(oracle.logits(ids[:4]), logits[:4], atol=1e-3)


class TestCompare:
    ids = (0, 2, 1)
    reference = np.log(np.array([[1, 1, 2], [1, 8, 1], [1, 1, 1]], dtype=np.float32))

    def test_equal_logits(self) -> None:
        shifted = self.reference + np.float32(3)  # a distribution has no zero point
        found = compare(self.reference, shifted, self.ids)
        assert found.mean_kl == pytest.approx(0, abs=1e-12)
        assert found.top1 == 1
        assert found.perplexity == pytest.approx(found.reference_perplexity)
        # the targets are token 2 at the first row, token 1 at the second
        assert found.perplexity == pytest.approx((0.5 * 0.8) ** -0.5)
        assert not found.faults()

    def test_a_difference(self) -> None:
        other = self.reference.copy()
        other[0] = np.log(np.array([2, 1, 1], dtype=np.float32))
        found = compare(self.reference, other, self.ids)
        # sum of p log(p / q): 0.25 log(0.25 / 0.5) + 0.5 log(0.5 / 0.25)
        assert found.max_kl == pytest.approx(0.25 * np.log(2))
        assert found.mean_kl == pytest.approx(0.25 * np.log(2) / 3)
        assert found.top1 == pytest.approx(2 / 3)
        assert found.perplexity == pytest.approx((0.25 * 0.8) ** -0.5)
        assert len(found.faults()) == 3

    def test_many_rows_are_summed_as_few(self) -> None:
        rng = np.random.default_rng(0)
        reference, other = rng.standard_normal((2, 200, 50)).astype(np.float32)
        ids = rng.integers(0, 50, 200).tolist()
        found = compare(reference, other, ids)
        p, q = (np.exp(x - np.logaddexp.reduce(x, axis=1)[:, None]) for x in (reference, other))
        kl = (p * np.log(p / q)).sum(axis=1)
        assert found.tokens == 200
        assert found.mean_kl == pytest.approx(kl.mean(), rel=1e-4)
        assert found.max_kl == pytest.approx(kl.max(), rel=1e-4)
        rows = np.arange(199)
        assert found.perplexity == pytest.approx(np.exp(-np.log(q[rows, ids[1:]]).mean()), rel=1e-4)

    def test_shapes_must_agree(self) -> None:
        with pytest.raises(ValueError, match="logits of"):
            compare(self.reference, self.reference[:2], self.ids)

    def test_faults_name_the_bound(self) -> None:
        good = Fidelity(10, 4e-3, 0.1, 0.95, 20.0, 20.1)
        assert not good.faults()
        assert "5e-03" in Fidelity(10, 6e-3, 0.1, 0.95, 20.0, 20.1).faults()[0]
        assert "94%" in Fidelity(10, 4e-3, 0.1, 0.93, 20.0, 20.1).faults()[0]
        assert "1%" in Fidelity(10, 4e-3, 0.1, 0.95, 20.0, 19.7).faults()[0]
