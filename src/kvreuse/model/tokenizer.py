"""Tokenizer: text to token ids and back, and text from tokens as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import tokenizers

from kvreuse.errors import RequestError

from .bpe import (
    BYTE_OF_CHARACTER,
    LITERAL_KINDS,
    SPECIAL_KINDS,
    Vocabulary,
    build_pipelines,
    read_vocabulary,
)
from .container import GGUFFile


class Tokenizer:
    """A byte-level BPE tokenizer. Nothing changes after construction, so threads may share it.

    ``vocab_size`` counts the tokens; ``bos_token_id`` opens a prompt where ``add_bos`` says so;
    each of ``eos_token_ids`` ends an answer, the first is the one that the file calls EOS.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool

    def __init__(
        self, vocabulary: Vocabulary, parsing: tokenizers.Tokenizer, plain: tokenizers.Tokenizer
    ) -> None:
        """``parsing`` finds control tokens in a text, ``plain`` takes their texts as text."""
        self._tokens = vocabulary.tokens
        self._special = vocabulary.ids_of(SPECIAL_KINDS)
        self._literal = vocabulary.ids_of(LITERAL_KINDS)
        self._parsing = parsing
        self._plain = plain
        self.vocab_size = len(vocabulary.tokens)
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.add_bos = vocabulary.add_bos

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """The tokenizer that the file describes.

        Raises ``ModelFileError`` where it is of another kind than byte-level BPE, cuts words in a
        way that is not known here, or contradicts itself.
        """
        vocabulary = read_vocabulary(file)
        return cls(vocabulary, *build_pipelines(file, vocabulary))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The token ids of a text.

        ``add_special_tokens`` puts the BOS token in front where the model wants one (``add_bos``);
        leave it out for a text that a chat template made. ``parse_special`` reads the text of a
        control token (``<|im_end|>``) as that token; without it, it is text like any other.
        Characters whose bytes the vocabulary lacks are dropped, as by the model's own tokenizer.

        Raises ``RequestError`` where the text is not valid Unicode (a lone surrogate).
        """
        check_unicode(text)
        pipeline = self._parsing if parse_special else self._plain
        ids: list[int] = pipeline.encode(text, add_special_tokens=False).ids
        if add_special_tokens and self.add_bos and self.bos_token_id is not None:
            ids.insert(0, self.bos_token_id)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids. Bytes that are no UTF-8 become U+FFFD, one a maximal subpart.

        Raises ``RequestError`` for an id outside the vocabulary.
        """
        skipped = self._special if skip_special_tokens else ()
        raw = b"".join(self.token_bytes(token) for token in ids if token not in skipped)
        return raw.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text. Raises ``RequestError`` outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            last = self.vocab_size - 1
            raise RequestError(f"token id {token_id} is outside the vocabulary (0 to {last})")
        text = self._tokens[token_id]
        if token_id in self._literal:
            return text.encode()
        try:
            return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
        except KeyError:  # not in the byte alphabet, so it can only be meant literally
            return text.encode()

    def token_text(self, token_id: int) -> str:
        """A token by itself as text, with U+FFFD for bytes that are no character by themselves."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves this token out."""
        return token_id in self._special


class IncrementalDecoder:
    """The text of one sequence, as its tokens come.

    ``push`` returns the text that is certain, and holds back the bytes of a character that later
    tokens may complete. All pushes and a ``flush`` at the end make ``Tokenizer.decode`` of all.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; may be empty."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What was held back, as U+FFFD: the sequence is over."""
        return self._decoder.decode(b"", final=True)


def check_unicode(text: str) -> None:
    """Raise ``RequestError`` for a text with a lone surrogate, as undecodable input leaves."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate {code} at character {error.start}"
        ) from None
