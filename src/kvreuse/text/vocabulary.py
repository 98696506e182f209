"""Vocabulary: the tokens of a model file, their kinds, and which of them begin and end a text."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvreuse.errors import ModelFileError
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.model.gguf.header import shown
from kvreuse.text.literals import Literals

# Tokens that end an answer wherever they appear, whichever of them the file calls EOS.
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
    """``tokenizer.ggml.token_type`` (the GGUF specification)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_KINDS = (TokenKind.UNKNOWN, TokenKind.CONTROL)
LITERAL_KINDS = (*SPECIAL_KINDS, TokenKind.USER_DEFINED)


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens: one of ``kinds`` for each, and ids that lie within them.

    ``add_bos`` and ``add_eos``: whether the model wants these tokens around a prompt.
    """

    tokens: list[str]
    kinds: list[int]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    unknown_token_id: int | None
    add_bos: bool
    add_eos: bool

    def ids_of(self, kinds: tuple[TokenKind, ...]) -> frozenset[int]:
        """The ids of all tokens of these kinds."""
        return frozenset(index for index, kind in enumerate(self.kinds) if kind in kinds)


class TokenModel(Protocol):
    """What the kinds of tokenizers have in common: text to ids, and an id to bytes."""

    vocabulary: Vocabulary
    space_prefix: bool
    """Whether a text gets a space in front before it is cut, which decoding takes away again."""
    literals: Literals
    """What finds control and user-defined tokens in a text."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text of valid Unicode, without BOS and EOS."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; its id lies within the vocabulary."""


@dataclass(frozen=True)
class Defaults:
    """What holds where a file does not say it; ids count where they lie within the vocabulary."""

    add_bos: bool = False
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None


def read_vocabulary(file: GGUFFile, defaults: Defaults) -> Vocabulary:
    """The tokens of a file and their kinds. Raises ``ModelFileError`` where they make no sense."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    kinds = _kinds(file, len(tokens))
    _check_unique(file, tokens)
    bos = _token_id(file, "bos", len(tokens), defaults.bos)
    eos = _token_id(file, "eos", len(tokens), defaults.eos)
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, defaults.add_bos)
    add_eos = file.get("tokenizer.ggml.add_eos_token", bool, False)
    for name, wanted, token in (("a BOS", add_bos, bos), ("an EOS", add_eos, eos)):
        if wanted and token is None:
            key = f"tokenizer.ggml.{name.split()[1].lower()}_token_id"
            raise tokenizer_error(file, f"wants {name} token but names none ('{key}')")
    ends = [eos, *(_token_id(file, name, len(tokens)) for name in ("eot", "eom"))]
    ends += [
        index
        for index, kind in enumerate(kinds)
        if kind == TokenKind.CONTROL and tokens[index] in END_TEXTS
    ]
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        unknown_token_id=_token_id(file, "unknown", len(tokens), defaults.unknown),
        add_bos=add_bos,
        add_eos=add_eos,
    )


def tokenizer_error(file: GGUFFile, message: str) -> ModelFileError:
    """The error to raise: one line that starts with the file's name."""
    return ModelFileError(f"{file.path}: {message}")


def _kinds(file: GGUFFile, count: int) -> list[int]:
    """The kind of each token; without the key all are normal."""
    key = "tokenizer.ggml.token_type"
    kinds = file.get(key, np.ndarray, None)
    if kinds is None:
        return [TokenKind.NORMAL] * count
    if len(kinds) != count or kinds.dtype.kind not in "iu":
        raise tokenizer_error(file, f"'{key}' must hold {count} whole numbers, one a token")
    return [int(kind) for kind in kinds.tolist()]


def _check_unique(file: GGUFFile, tokens: list[str]) -> None:
    if len(set(tokens)) == len(tokens):
        return
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise tokenizer_error(file, f"the token {shown(token)} is in the vocabulary twice")
        seen.add(token)


def _token_id(file: GGUFFile, name: str, count: int, default: int | None = None) -> int | None:
    """The value of a key that names a token, if the file has it or the default lies within."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.get(key, int, None)
    if value is None:
        return default if default is not None and default < count else None
    if not 0 <= value < count:
        raise tokenizer_error(file, f"'{key}' is {value}, with {count} tokens")
    return value
