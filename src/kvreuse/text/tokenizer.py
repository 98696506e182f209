"""Tokenizer: text to token ids and back, and text from tokens as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from kvreuse.errors import RequestError, shown
from kvreuse.text.bpe import ByteLevelBPE
from kvreuse.text.literals import Literals
from kvreuse.text.sentencepiece import SentencePieceBPE
from kvreuse.text.vocabulary import LITERAL_KINDS, SPECIAL_KINDS, BytePairs, Vocabulary


class TokenModel(Protocol):
    """What the kinds of tokenizers have in common: text to ids, and an id to bytes."""

    space_prefix: bool
    """Whether encoding puts a space in front of a text, which decoding takes away again."""
    literals: Literals
    """Finds control and user-defined tokens in a text."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text of valid Unicode, without BOS and EOS."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; its id lies within the vocabulary."""


class Tokenizer:
    """A tokenizer of either kind. Threads may share it: what it returns never changes.

    ``vocab_size`` counts the tokens. ``bos_token_id`` opens a prompt if ``add_bos`` is set, and the
    first of ``eos_token_ids``, the model's own EOS, closes it if ``add_eos`` is. Each of
    ``eos_token_ids`` ends an answer.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ``ModelFileError`` where the vocabulary contradicts itself."""
        self._model = _token_model(vocabulary)
        self._special = vocabulary.ids_of(*SPECIAL_KINDS)
        self._literals = {
            vocabulary.tokens[index]: index for index in vocabulary.ids_of(*LITERAL_KINDS)
        }
        self._bytes: dict[int, bytes] = {}
        self.space_prefix = self._model.space_prefix
        self.vocab_size = len(vocabulary.tokens)
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The token ids of a text.

        ``add_special_tokens`` adds the BOS token in front and the EOS token behind where the model
        wants them (``add_bos``, ``add_eos``); pass False for a text from a chat template.
        ``parse_special`` reads the text of a control token (``<|im_end|>``) as that token; else it
        is encoded like any other text. A character that the vocabulary lacks becomes the unknown
        token, or is dropped if there is none, as by the model's own tokenizer.

        Raises ``RequestError`` where the text is not valid Unicode (a lone surrogate), and where
        all of it would be dropped.
        """
        check_unicode(text)
        ids = self._model.encode(text, parse_special=parse_special)
        if text and not ids:
            raise RequestError(f"the vocabulary has no token for any character of {shown(text)}")
        if add_special_tokens and self.add_bos and self.bos_token_id is not None:
            ids.insert(0, self.bos_token_id)
        if add_special_tokens and self.add_eos:
            ids.append(self.eos_token_ids[0])
        return ids

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        continuation: bool = False,
    ) -> str:
        """The text of the ids. Bytes that are no UTF-8 become U+FFFD, one for each maximal subpart.

        Where ``encode`` puts a space in front of a text (``space_prefix``), a space at the start is
        removed, unless the ids are a ``continuation`` of other text.
        Raises ``RequestError`` for an id outside the vocabulary.
        """
        skipped = self._special if skip_special_tokens else ()
        raw = b"".join(self.token_bytes(token) for token in ids if token not in skipped)
        if self.space_prefix and not continuation:
            raw = raw.removeprefix(b" ")
        return raw.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text. Raises ``RequestError`` outside the vocabulary."""
        raw = self._bytes.get(token_id)
        if raw is None:
            if not 0 <= token_id < self.vocab_size:
                last = self.vocab_size - 1
                raise RequestError(f"token id {token_id} is outside the vocabulary (0 to {last})")
            raw = self._bytes[token_id] = self._model.token_bytes(token_id)
        return raw

    def token_text(self, token_id: int) -> str:
        """The text of one token, with U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves this token out."""
        return token_id in self._special

    def literal_starts(self, text: str) -> list[int]:
        """Where control and user-defined tokens start in a text, in characters; no blank ones.

        Encoding with ``parse_special`` cuts a text at these places first: the text before such a
        place and the text from it on have the same tokens together as each has alone.
        """
        return self._model.literals.starts(text)

    def literal_id(self, text: str) -> int | None:
        """The control or user-defined token that reads ``text``, if there is one."""
        return self._literals.get(text)


def _token_model(vocabulary: Vocabulary) -> TokenModel:
    algorithm = vocabulary.algorithm
    if isinstance(algorithm, BytePairs):
        return ByteLevelBPE(vocabulary, algorithm)
    return SentencePieceBPE(vocabulary, algorithm)


class IncrementalDecoder:
    """The text of one sequence, as its tokens come.

    ``push`` returns the text that is final, and holds back bytes that later tokens may complete to
    a character. The texts of all pushes and of a ``flush`` at the end are together those of
    ``Tokenizer.decode`` of all tokens, with the same ``skip_special_tokens`` and ``continuation``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        continuation: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._prefixed = tokenizer.space_prefix and not continuation
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that is final with this token; may be empty."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        raw = self._tokenizer.token_bytes(token_id)
        if self._prefixed and raw:
            self._prefixed = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """The bytes held back, as U+FFFD; call it when the sequence is over."""
        return self._decoder.decode(b"", final=True)


def check_unicode(text: str) -> None:
    """Raise ``RequestError`` for a text with a lone surrogate, which undecodable input leaves."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate {code} at character {error.start}"
        ) from None
