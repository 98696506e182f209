"""SentencePiece BPE: joins by score, bytes for the rest, and vocabularies that make no sense."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.errors import ModelFileError, RequestError
from kvreuse.model.open import open_checkpoint
from kvreuse.text.offsets import spells, token_offsets
from kvreuse.text.sentencepiece import MAX_REMEMBERED, SentencePieceBPE, join
from kvreuse.text.tokenizer import IncrementalDecoder, Tokenizer
from kvreuse.text.vocabulary import ScoredPieces, TokenKind, Vocabulary

from ..model.gguf.gguf_files import write_tiny_llama

N, U, C, D, X, B = (
    TokenKind.NORMAL,
    TokenKind.UNKNOWN,
    TokenKind.CONTROL,
    TokenKind.USER_DEFINED,
    TokenKind.UNUSED,
    TokenKind.BYTE,
)
START = [("<unk>", U, 0.0), ("<s>", C, 0.0), ("</s>", C, 0.0)]
BYTES = [(f"<0x{byte:02X}>", B, 0.0) for byte in range(256)]
WORDS = [
    (piece, N, -float(rank))
    for rank, piece in enumerate(
        ["ab", "▁a", "▁ab", "bc", "a▁b", "▁", "a", "b", "c", "s", "<", ">"]
    )
]
PIECES = [*START, *BYTES, *WORDS, ("<tool>", D, 0.0), ("▁▁▁", D, 0.0), ("cc", X, 9.0)]
ID = {piece: index for index, (piece, _, _) in enumerate(PIECES)}
WITHOUT_BYTES = [*START, *WORDS]


def tokenizer(
    path: Path, pieces: Sequence[tuple[str, int, float]] = PIECES, **extra: Any
) -> Tokenizer:
    """The tokenizer of these pieces; ``extra`` replaces keys."""
    tokens, kinds, scores = map(list, zip(*pieces, strict=True))
    keys = {
        "model": "llama",
        "pre": "default",
        "merges": None,
        "tokens": tokens,
        "token_type": list(map(int, kinds)),
        "scores": scores,
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": None,
        **extra,
    }
    named = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    write_tiny_llama(path / "x.gguf", layers=1, vocab=320, extra=named)
    with open_checkpoint(path / "x.gguf") as checkpoint:
        return Tokenizer(checkpoint.vocabulary)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Without a space in front."""
    return tokenizer(tmp_path_factory.mktemp("plain"), add_space_prefix=False)


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As Llama 2's, where the file says nothing."""
    return tokenizer(tmp_path_factory.mktemp("prefixed"))


def slow_join(word: str, costs: dict[str, float]) -> list[str]:
    """``join`` as its definition reads."""
    parts = list(word)
    while True:
        pairs = [
            (costs[parts[at] + parts[at + 1]], at)
            for at in range(len(parts) - 1)
            if parts[at] + parts[at + 1] in costs
        ]
        if not pairs:
            return parts
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(
    word=st.text("abc", max_size=40),
    costs=st.dictionaries(
        st.text("abc", min_size=2, max_size=5), st.integers(0, 4).map(float), max_size=25
    ),
)
def test_joins_are_those_of_the_definition(word: str, costs: dict[str, float]) -> None:
    assert join(word, costs) == slow_join(word, costs)


def test_the_leftmost_of_equals() -> None:
    # Two pairs that make one piece: a list of merges would prefer one of them everywhere.
    costs = {"aa": 0.0, "aab": 2.0, "ab": 1.0, "ba": 1.0}
    assert join("aba", costs) == ["ab", "a"]
    assert join("aaab", costs) == ["aa", "ab"]


def test_a_long_word_is_quick() -> None:
    costs = {"a" * length: -float(length) for length in range(2, 17)}
    start = time.perf_counter()
    parts = join("a" * 100_000, costs)
    assert time.perf_counter() - start < 5
    assert "".join(parts) == "a" * 100_000


@given(texts=st.lists(st.text("ab ▁c<>é", max_size=12), min_size=1, max_size=3))
def test_cuts_and_memory_change_nothing(texts: list[str], plain: Tokenizer) -> None:
    costs = {piece: -score for piece, kind, score in PIECES if kind == N}
    for text in texts * 2:
        if "▁▁▁" in text.replace(" ", "▁"):
            continue
        expected: list[int] = []
        for piece in slow_join(text.replace(" ", "▁"), costs):
            known = piece in costs
            expected += [ID[piece]] if known else [ID[f"<0x{b:02X}>"] for b in piece.encode()]
        assert plain.encode(text, add_special_tokens=False) == expected


def test_memory_is_bounded(plain: Tokenizer) -> None:
    model = plain._model
    assert isinstance(model, SentencePieceBPE)
    for index in range(0, MAX_REMEMBERED + 5000, 1000):
        words = " ".join(f"{number:x}" for number in range(index, index + 1000))
        assert plain.decode(plain.encode(words)) == words
    assert 0 < len(model._remembered) <= MAX_REMEMBERED
    plain.encode("x" * 1000)
    assert max(map(len, model._remembered)) < 1000


@given(text=st.text())
def test_any_text_comes_back(text: str, plain: Tokenizer, prefixed: Tokenizer) -> None:
    text = text.replace("▁", "")
    for one in (plain, prefixed):
        ids = one.encode(text, add_special_tokens=False, parse_special=False)
        assert one.decode(ids) == text


@given(ids=st.lists(st.integers(0, len(PIECES) - 1)), skip=st.booleans(), after=st.booleans())
def test_pushes_concatenate_to_decode(
    ids: list[int], skip: bool, after: bool, prefixed: Tokenizer
) -> None:
    decoder = IncrementalDecoder(prefixed, skip_special_tokens=skip, continuation=after)
    parts = [*map(decoder.push, ids), decoder.flush()]
    decoded = prefixed.decode(ids, skip_special_tokens=skip, continuation=after)
    assert "".join(parts) == decoded


def test_no_push_holds_half_a_character(plain: Tokenizer) -> None:
    decoder = IncrementalDecoder(plain)
    ids = [ID[f"<0x{byte:02X}>"] for byte in "é👍".encode()]
    assert [decoder.push(token) for token in ids] == ["", "é", "", "", "", "👍"]
    assert [decoder.push(ids[0]), decoder.flush()] == ["", "\ufffd"]


def test_the_space_in_front(plain: Tokenizer, prefixed: Tokenizer) -> None:
    assert plain.encode("ab") == [1, ID["ab"]]
    assert prefixed.encode("ab") == [1, ID["▁ab"]]
    assert prefixed.encode("") == [1]
    assert prefixed.encode("ab<tool>ab") == [1, ID["▁ab"], ID["<tool>"], ID["▁ab"]]
    assert prefixed.decode([1, ID["▁ab"], ID["▁ab"]]) == "ab ab"
    assert prefixed.decode([ID["▁ab"]], continuation=True) == " ab"
    assert plain.decode([ID["▁ab"]]) == " ab"


def test_literal_tokens(plain: Tokenizer) -> None:
    def encode(text: str, *, parse: bool = True) -> list[int]:
        return plain.encode(text, add_special_tokens=False, parse_special=parse)

    assert encode("<s>a</s>") == [1, ID["a"], 2]
    assert encode("<s>", parse=False) == [ID["<"], ID["s"], ID[">"]]
    assert encode("<tool>    a", parse=False) == [ID["<tool>"], ID["▁▁▁"], ID["▁a"]]
    assert plain.decode(encode("<tool>    a")) == "<tool>    a"
    assert plain.decode([0, 1, ID["a"], 2], skip_special_tokens=False) == "<unk><s>a</s>"
    assert encode("<0x41>cc") == [
        *(ID[f"<0x{byte:02X}>"] if chr(byte) not in "<>" else ID[chr(byte)] for byte in b"<0x41>"),
        ID["c"],
        ID["c"],
    ]


def test_without_bytes_what_is_no_piece_is_unknown(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, WITHOUT_BYTES, add_space_prefix=False, unknown_token_id=None)
    ids = one.encode("éxbéa", add_special_tokens=False)
    pieces = {piece: index for index, (piece, _, _) in enumerate(WITHOUT_BYTES)}
    assert ids == [0, pieces["b"], 0, pieces["a"]]
    assert one.decode(ids) == "ba"


def test_a_byte_that_is_missing_makes_no_fallback(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, [*START, *BYTES[:-1], *WORDS], add_space_prefix=False)
    assert one.encode("é", add_special_tokens=False) == [0]
    assert one.token_bytes(3 + 0x41) == b"A"


def test_eos_behind_a_prompt(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, add_eos_token=True, add_bos_token=False)
    assert one.encode("ab") == [ID["▁ab"], 2]
    assert one.encode("ab", add_special_tokens=False) == [ID["▁ab"]]


def test_where_the_file_does_not_say(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, unknown_token_id=None, bos_token_id=None, eos_token_id=None)
    assert (one.bos_token_id, one.eos_token_ids, one.add_bos, one.add_eos) == (1, (2,), True, False)


def test_defaults_beyond_the_vocabulary_do_not_count(tmp_path: Path) -> None:
    absent = {"unknown_token_id": None, "bos_token_id": None, "eos_token_id": None}
    one = tokenizer(tmp_path, WITHOUT_BYTES[:2], **absent)
    assert (one.bos_token_id, one.eos_token_ids) == (1, ())
    one = tokenizer(tmp_path, WITHOUT_BYTES[:1], **absent, add_bos_token=False)
    assert (one.bos_token_id, one.eos_token_ids) == (None, ())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": None}, "the key 'tokenizer.ggml.scores' is missing"),
        ({"scores": [1.0]}, "'tokenizer.ggml.scores' must hold 274 numbers, one a token"),
        ({"scores": [float("nan")] * 274}, "must hold 274 numbers, one a token"),
        ({"scores": [True] * 274}, "must hold 274 numbers, one a token"),
        ({"add_space_prefix": 1}, "must hold true or false"),
        ({"unknown_token_id": 274}, "'tokenizer.ggml.unknown_token_id' is 274, with 274 tokens"),
        ({"token_type": [B] * 274}, "the byte token 0 must read like <0x0A>, not '<unk>'"),
        ({"tokens": ["a"] * 274}, "the token 'a' is in the vocabulary twice"),
    ],
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


def test_a_text_of_which_nothing_is_left() -> None:
    vocabulary = Vocabulary(
        source="x",
        algorithm=ScoredPieces([0.0], space_prefix=False),
        tokens=["a"],
        kinds=[N],
    )
    one = Tokenizer(vocabulary)
    assert one.encode("xax") == [0]
    assert one.encode("") == []
    with pytest.raises(RequestError, match="no token for any character of 'xé'"):
        one.encode("xé")


@pytest.mark.parametrize("kind", ["plain", "prefixed"])
@given(pieces=st.lists(st.sampled_from(["<s>", "</s>", "<tool>", "   ", " ", "a", "b", "\u00e9"])))
def test_cuts_and_offsets(
    plain: Tokenizer, prefixed: Tokenizer, kind: str, pieces: list[str]
) -> None:
    """A text may be cut where a literal starts; a space put in front takes no characters."""
    one, text = {"plain": plain, "prefixed": prefixed}[kind], "".join(pieces)
    ids = one.encode(text, add_special_tokens=False)
    starts = one.literal_starts(text)
    assert len(starts) == sum(text.count(literal) for literal in ("<s>", "</s>", "<tool>"))
    for cut in starts:
        halves = [one.encode(half, add_special_tokens=False) for half in (text[:cut], text[cut:])]
        assert halves[0] + halves[1] == ids
    offsets = token_offsets(one, ids, text)
    assert offsets is not None
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, len(text))
    assert spells(one, ids, text)
    assert not spells(one, ids, text + "a")
