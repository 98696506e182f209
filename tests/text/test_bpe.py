"""How each kind of model cuts words, and vocabularies that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.vocabulary import read_vocabulary
from kvreuse.model.open import open_checkpoint
from kvreuse.text import bpe
from kvreuse.text.bpe import BYTE_OF_CHARACTER
from kvreuse.text.cuts import CUTS
from kvreuse.text.tokenizer import Tokenizer

from ..model.gguf.gguf_files import tokenizer_metadata, write_tiny_llama
from .plain_bpe import byte_characters

VOCAB = 300
METADATA = tokenizer_metadata(VOCAB)
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
MERGES: list[str] = METADATA["tokenizer.ggml.merges"]


def tokenizer(tmp_path: Path, **extra: Any) -> Tokenizer:
    """A tiny tokenizer, with some of its keys replaced."""
    keys = {f"tokenizer.ggml.{name}": value for name, value in extra.items()}
    path = write_tiny_llama(tmp_path / "x.gguf", layers=1, vocab=VOCAB, extra=keys)
    with open_checkpoint(path) as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


def test_long_texts_are_encoded_as_short_ones(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "It's <|im_start|> 1234\n\n  caf\u00e9 \U0001f600 " * 2000
    assert len(text) > bpe.LONG_TEXT
    with open_checkpoint(model_path) as checkpoint:
        read = Tokenizer(checkpoint.vocabulary)
    for parse_special in (True, False):
        long = read.encode(text, parse_special=parse_special)
        with monkeypatch.context() as patch:
            patch.setattr(bpe, "LONG_TEXT", len(text) + 1)
            assert read.encode(text, parse_special=parse_special) == long


def test_byte_alphabet() -> None:
    assert list(map(BYTE_OF_CHARACTER.__getitem__, byte_characters())) == list(range(256))
    assert len(BYTE_OF_CHARACTER) == 256


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ1234", "ĠI", "'", "LL", "Ġx", "ĊĊĠ", "Ġy"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "ĠI", "'", "LL", "Ġx", "ĊĊĠ", "Ġy"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "ĠI", "'LL", "Ġx", "ĊĊ", "Ġ", "Ġy"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "ĠI", "'LL", "Ġx", "ĊĊ", "Ġ", "Ġy"]),
    ],
)
def test_cuts(pre: str, words: list[str]) -> None:
    found = CUTS[pre].pre_tokenizer().pre_tokenize_str("It's 1234 I'LL x\n\n  y")
    assert [word for word, _ in found] == words


def test_only_llama3_takes_a_whole_word_without_its_merges(tmp_path: Path) -> None:
    def encode(pre: str) -> list[int]:
        tokens, merges = [*TOKENS[:-1], "qzqz"], MERGES[:-1]
        return tokenizer(tmp_path, tokens=tokens, merges=merges, pre=pre).encode("qzqz")

    assert encode("llama-bpe") == [VOCAB - 1]
    assert len(encode("smollm")) == 4


def test_only_qwen_composes_characters(tmp_path: Path) -> None:
    qwen, smollm = (tokenizer(tmp_path, pre=pre) for pre in ("qwen2", "smollm"))
    assert qwen.encode("e\u0301") == qwen.encode("é")
    assert smollm.encode("e\u0301") != smollm.encode("é")


def test_bos_where_the_file_does_not_say(tmp_path: Path) -> None:
    def add_bos(pre: str) -> bool:
        path = tmp_path / "x.gguf"
        metadata = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": None}
        write_tiny_llama(path, layers=1, vocab=VOCAB, extra=metadata)
        with GGUFFile(path) as file:
            assert "tokenizer.ggml.add_bos_token" not in file.metadata
            return Tokenizer(read_vocabulary(file)).add_bos

    assert add_bos("llama-bpe")
    assert not add_bos("smollm")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "t5"}, "the tokenizer 't5' is not supported (supported: 'gpt2', 'llama')"),
        ({"pre": "viking"}, "the pre-tokenizer 'viking' is not supported (supported: gpt-2, "),
        ({"pre": None}, "the key 'tokenizer.ggml.pre' is missing"),
        ({"tokens": None}, "the key 'tokenizer.ggml.tokens' is missing"),
        ({"tokens": [1, 2]}, "must hold a list of texts, it holds a list of numbers"),
        ({"merges": None}, "the key 'tokenizer.ggml.merges' is missing"),
        ({"token_type": [1, 2]}, "must hold 300 whole numbers, one a token"),
        ({"token_type": [0.5] * VOCAB}, "must hold 300 whole numbers, one a token"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "the token 'a' is in the vocabulary twice"),
        ({"merges": ["a b c"]}, "merges and tokens disagree: "),
        ({"merges": ["ab"]}, "merges and tokens disagree: "),
        ({"merges": ["a zzz"]}, "merges and tokens disagree: "),
        ({"bos_token_id": VOCAB}, "'tokenizer.ggml.bos_token_id' is 300, with 300 tokens"),
        ({"eot_token_id": 1 << 31}, "'tokenizer.ggml.eot_token_id' is 2147483648, with 300"),
        ({"add_bos_token": True, "bos_token_id": None}, "wants a BOS token but names none"),
        ({"add_bos_token": "yes"}, "must hold true or false, it holds text"),
        ({"add_eos_token": True, "eos_token_id": None}, "wants an EOS token but names none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_vocabularies_that_make_no_sense(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        tokenizer(tmp_path, **keys)
    line = str(caught.value)
    assert message in line
    assert line.startswith(f"{tmp_path / 'x.gguf'}: ")
    assert line.isprintable()


def test_without_kinds_every_token_is_text(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path, token_type=None)
    assert plain.eos_token_ids == (2,)
    assert len(plain.encode("<|im_end|>")) > 1
