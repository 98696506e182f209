"""Vocabulary: the tokens of a model, their kinds, and how a text becomes tokens; plain data.

Whatever the format of a model's files, its reader makes one of these, and a Tokenizer is built of
it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kvreuse.errors import ModelFileError
from kvreuse.text.cuts import Cut

# Control tokens that end an answer in every vocabulary that has them, besides its own EOS.
END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
    }
)


class TokenKind(enum.IntEnum):
    """What a token is, numbered as in the GGUF specification (``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_KINDS = (TokenKind.UNKNOWN, TokenKind.CONTROL)
LITERAL_KINDS = (*SPECIAL_KINDS, TokenKind.USER_DEFINED)


@dataclass(frozen=True, slots=True)
class BytePairs:
    """Byte-level BPE: a text is cut into words by ``cut``, and ``merges`` join their bytes.

    A merge is two tokens with a space between them; the first merges are applied first.
    """

    merges: Sequence[str]
    cut: Cut


@dataclass(frozen=True, slots=True)
class ScoredPieces:
    """SentencePiece BPE: ``scores`` has one number for each token, the best pieces the highest.

    ``space_prefix``: a text gets a space in front before it is encoded.
    """

    scores: Sequence[float]
    space_prefix: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, one of ``kinds`` for each. All ids are places in ``tokens``.

    ``add_bos`` and ``add_eos``: whether a prompt gets these tokens, which then are not None.
    ``source`` is the file that it was read from, for messages.
    """

    source: str
    algorithm: BytePairs | ScoredPieces
    tokens: Sequence[str]
    kinds: Sequence[int]
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    unknown_token_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False

    def ids_of(self, *kinds: TokenKind) -> frozenset[int]:
        """The ids of all tokens of these kinds."""
        return frozenset(index for index, kind in enumerate(self.kinds) if kind in kinds)

    def error(self, message: str) -> ModelFileError:
        """The error to raise where it contradicts itself: one line that starts with the file."""
        return ModelFileError(f"{self.source}: {message}")
