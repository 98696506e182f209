"""Byte-level BPE out of a file's metadata, on the ``tokenizers`` package.

Byte-level BPE (Radford et al., 2019, GPT-2) writes each byte as a printable character, so that
tokens are texts.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, models, normalizers

from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.header import shown
from kvreuse.text.cuts import CUTS, Cut
from kvreuse.text.literals import Literals
from kvreuse.text.vocabulary import (
    LITERAL_KINDS,
    SPECIAL_KINDS,
    Defaults,
    TokenKind,
    Vocabulary,
    read_vocabulary,
    tokenizer_error,
)


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte: printable Latin-1 is itself, the rest U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_alphabet()
LONG_TEXT = 1 << 14
"""Characters from which on a text is encoded without the interpreter's lock."""


class ByteLevelBPE:
    """Two pipelines that share one model: one finds control tokens in a text, the other does not.

    Both find user-defined tokens. A byte that is no token is left out, as the ``tokenizers``
    package and llama.cpp do.
    """

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary, model: models.BPE, cut: Cut) -> None:
        self.vocabulary = vocabulary
        self._literal = vocabulary.ids_of(LITERAL_KINDS)
        texts = {index: vocabulary.tokens[index] for index in self._literal}
        self.literals = Literals(texts, vocabulary.ids_of(SPECIAL_KINDS))
        user_defined = vocabulary.ids_of((TokenKind.USER_DEFINED,))
        self._plain, self._parsing = Tokenizer(model), Tokenizer(model)
        for pipeline in (self._plain, self._parsing):
            pipeline.pre_tokenizer = cut.pre_tokenizer()
            if cut.nfc:
                pipeline.normalizer = normalizers.NFC()
            pipeline.add_tokens(_added(vocabulary, user_defined))
        self._parsing.add_special_tokens(_added(vocabulary, vocabulary.ids_of(SPECIAL_KINDS)))

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ByteLevelBPE:
        """Raises ``ModelFileError`` where merges and tokens disagree, or the cut is not known."""
        pre = file.get("tokenizer.ggml.pre", str)
        if (cut := CUTS.get(pre)) is None:
            known = ", ".join(CUTS)
            message = f"the pre-tokenizer {shown(pre)} is not supported (supported: {known})"
            raise tokenizer_error(file, message)
        vocabulary = read_vocabulary(file, Defaults(add_bos=cut.add_bos))
        ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges", list)]
        try:
            model = models.BPE(ids, merges, ignore_merges=cut.ignore_merges)
        except Exception as error:  # the package raises no narrower class
            message = f"merges and tokens disagree: {shown(str(error))}"
            raise tokenizer_error(file, message) from None
        return cls(vocabulary, model, cut)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text of valid Unicode, without BOS and EOS."""
        pipeline = self._parsing if parse_special else self._plain
        ids: list[int]
        if len(text) < LONG_TEXT:
            ids = pipeline.encode(text, add_special_tokens=False).ids
        else:  # the same, and other threads get on meanwhile
            ids = pipeline.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; its id lies within the vocabulary."""
        text = self.vocabulary.tokens[token_id]
        if token_id in self._literal:
            return text.encode()
        try:
            return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
        except KeyError:  # not in the byte alphabet, so it can only be meant literally
            return text.encode()


def _added(vocabulary: Vocabulary, ids: frozenset[int]) -> list[AddedToken]:
    return [AddedToken(vocabulary.tokens[index], normalized=False) for index in sorted(ids)]
