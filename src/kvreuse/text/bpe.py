"""Byte-level BPE on the ``tokenizers`` package.

Byte-level BPE (Radford et al., 2019, GPT-2) writes each byte as a printable character, so that
tokens are texts.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

from kvreuse.errors import shown
from kvreuse.text.literals import Literals
from kvreuse.text.vocabulary import (
    LITERAL_KINDS,
    SPECIAL_KINDS,
    BytePairs,
    TokenKind,
    Vocabulary,
)


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte: printable Latin-1 is itself, the rest U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_alphabet()
LONG_TEXT = 1 << 14
"""A text of so many characters is encoded without holding the interpreter's lock."""


class ByteLevelBPE:
    """Two pipelines with one model: one finds control tokens in a text, the other does not.

    Both find user-defined tokens. A byte without a token is left out, as by the ``tokenizers``
    package and llama.cpp.
    """

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary, pairs: BytePairs) -> None:
        """Raises ``ModelFileError`` where merges and tokens disagree."""
        self._tokens = vocabulary.tokens
        self._literal = vocabulary.ids_of(*LITERAL_KINDS)
        special = vocabulary.ids_of(*SPECIAL_KINDS)
        self.literals = Literals({index: self._tokens[index] for index in self._literal}, special)
        model = _model(vocabulary, pairs)
        self._plain, self._parsing = Tokenizer(model), Tokenizer(model)
        for pipeline in (self._plain, self._parsing):
            pipeline.pre_tokenizer = pairs.cut.pre_tokenizer()
            if pairs.cut.nfc:
                pipeline.normalizer = normalizers.NFC()
            pipeline.add_tokens(self._added(vocabulary.ids_of(TokenKind.USER_DEFINED)))
        self._parsing.add_special_tokens(self._added(special))

    def _added(self, ids: frozenset[int]) -> list[AddedToken]:
        return [AddedToken(self._tokens[index], normalized=False) for index in sorted(ids)]

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text of valid Unicode, without BOS and EOS."""
        pipeline = self._parsing if parse_special else self._plain
        ids: list[int]
        if len(text) < LONG_TEXT:
            ids = pipeline.encode(text, add_special_tokens=False).ids
        else:  # the same ids, and other threads run meanwhile
            ids = pipeline.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; its id lies within the vocabulary."""
        text = self._tokens[token_id]
        if token_id in self._literal:
            return text.encode()
        try:
            return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
        except KeyError:  # characters outside the byte alphabet stand for themselves
            return text.encode()


def _model(vocabulary: Vocabulary, pairs: BytePairs) -> models.BPE:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges: list[Any] = [tuple(merge.split(" ")) for merge in pairs.merges]
    try:
        # The package checks that each merge is a pair, of tokens that there are.
        return models.BPE(ids, merges, ignore_merges=pairs.cut.ignore_merges)
    except Exception as error:  # the package raises no narrower class
        raise vocabulary.error(f"merges and tokens disagree: {shown(str(error))}") from None
