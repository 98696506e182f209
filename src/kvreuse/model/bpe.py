"""Byte-level BPE: a vocabulary read from GGUF metadata, and the ``tokenizers`` pipelines over it.

Byte-level BPE (Radford et al., 2019, GPT-2) writes each byte as a printable character, so that
tokens are texts. How a text is cut into words before the merges has a name, the file's
``tokenizer.ggml.pre``; the cuts here are those of the models' own ``tokenizer.json``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from kvreuse.errors import ModelFileError

from .container import GGUFFile
from .header import shown

# Control tokens that end an answer wherever they appear, whichever of them the file calls EOS.
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
    }
)


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte: printable Latin-1 is itself, the rest U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_alphabet()


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
class Cut:
    """How the models of one ``pre`` name cut words, and what else that name implies.

    ``pattern`` cuts words by a regular expression; without it GPT-2's does, after each digit became
    a word of its own where ``digits`` says so. ``ignore_merges`` takes a word that is a token as
    that token; ``nfc`` composes characters first; ``add_bos`` holds where the file does not say.
    """

    pattern: str | None = None
    digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer, which ends in the byte alphabet."""
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern)
        first: pre_tokenizers.PreTokenizer
        if self.pattern:
            first = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
        elif self.digits:
            first = pre_tokenizers.Digits(individual_digits=True)
        else:
            return byte_level
        return pre_tokenizers.Sequence([first, byte_level])


def _pattern(digits: str) -> str:
    """Words as Llama 3 and Qwen 2 cut them; they differ in how many digits make one."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = Cut()
_DIGITS = Cut(digits=True)
_LLAMA3 = Cut(pattern=_pattern(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)
_QWEN2 = Cut(pattern=_pattern(r"\p{N}"), nfc=True)
CUTS = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    "qwen2": _QWEN2,
}


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens: one of ``kinds`` for each, and ids that lie within them."""

    tokens: list[str]
    kinds: list[int]
    cut: Cut
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool

    def ids_of(self, kinds: tuple[TokenKind, ...]) -> frozenset[int]:
        """The ids of all tokens of these kinds."""
        return frozenset(index for index, kind in enumerate(self.kinds) if kind in kinds)


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """The tokens of a file and their kinds. Raises ``ModelFileError`` where they make no sense."""
    if (model := file.get("tokenizer.ggml.model", str)) != "gpt2":
        raise _error(file, f"the tokenizer {shown(model)} is not supported (supported: 'gpt2')")
    pre = file.get("tokenizer.ggml.pre", str)
    if (cut := CUTS.get(pre)) is None:
        known = ", ".join(CUTS)
        raise _error(file, f"the pre-tokenizer {shown(pre)} is not supported (supported: {known})")
    tokens = file.get("tokenizer.ggml.tokens", list)
    kinds = _kinds(file, len(tokens))
    ends = [_token_id(file, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom")]
    ends += [
        i for i, kind in enumerate(kinds) if kind == TokenKind.CONTROL and tokens[i] in END_TEXTS
    ]
    bos = _token_id(file, "bos_token_id", len(tokens))
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, cut.add_bos)
    if add_bos and bos is None:
        raise _error(file, "wants a BOS token but names none ('tokenizer.ggml.bos_token_id')")
    eos = tuple(dict.fromkeys(end for end in ends if end is not None))
    return Vocabulary(tokens, kinds, cut, bos, eos, add_bos)


def build_pipelines(file: GGUFFile, vocabulary: Vocabulary) -> tuple[Tokenizer, Tokenizer]:
    """Two pipelines that share one model: the first finds control tokens in a text, the second not.

    Both find user-defined tokens. Raises ``ModelFileError`` where merges and tokens disagree.
    """
    tokens = vocabulary.tokens
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise _error(file, f"the token {shown(twice)} is in the vocabulary twice")
    merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges", list)]
    try:
        model = models.BPE(ids, merges, ignore_merges=vocabulary.cut.ignore_merges)
    except Exception as error:  # the package raises no narrower class
        raise _error(file, f"merges and tokens disagree: {shown(str(error))}") from None
    plain, parsing = Tokenizer(model), Tokenizer(model)
    special = vocabulary.ids_of(SPECIAL_KINDS)
    for pipeline in (plain, parsing):
        pipeline.pre_tokenizer = vocabulary.cut.pre_tokenizer()
        if vocabulary.cut.nfc:
            pipeline.normalizer = normalizers.NFC()
        user_defined = sorted(vocabulary.ids_of(LITERAL_KINDS) - special)
        pipeline.add_tokens([AddedToken(tokens[i], normalized=False) for i in user_defined])
    parsing.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in sorted(special)])
    return parsing, plain


def _kinds(file: GGUFFile, count: int) -> list[int]:
    """The kind of each token; without the key all are normal."""
    key = "tokenizer.ggml.token_type"
    kinds = file.get(key, np.ndarray, None)
    if kinds is None:
        return [TokenKind.NORMAL] * count
    if len(kinds) != count or kinds.dtype.kind not in "iu":
        raise _error(file, f"'{key}' must hold {count} whole numbers, one a token")
    return [int(kind) for kind in kinds.tolist()]


def _token_id(file: GGUFFile, name: str, count: int) -> int | None:
    """The value of a key that names a token, if the file has it."""
    value = file.get(f"tokenizer.ggml.{name}", int, None)
    if value is not None and not 0 <= value < count:
        raise _error(file, f"'tokenizer.ggml.{name}' is {value}, with {count} tokens")
    return value


def _error(file: GGUFFile, message: str) -> ModelFileError:
    return ModelFileError(f"{file.path}: {message}")
