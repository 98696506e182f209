"""From the keys of a GGUF file to a Vocabulary, checked as it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kvreuse.errors import ModelFileError, shown
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.text.cuts import CUTS
from kvreuse.text.vocabulary import END_TEXTS, BytePairs, ScoredPieces, TokenKind, Vocabulary


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What holds where a file does not say it. An id counts if it lies within the vocabulary."""

    add_bos: bool
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """The vocabulary that a file describes.

    Raises ``ModelFileError`` where it is neither byte-level BPE nor SentencePiece BPE, cuts words
    in a way that is not known here, or contradicts itself.
    """
    name = file.get("tokenizer.ggml.model", str)
    if (read := ALGORITHMS.get(name)) is None:
        known = ", ".join(map(repr, ALGORITHMS))
        raise _error(file, f"the tokenizer {shown(name)} is not supported (supported: {known})")
    algorithm, defaults = read(file)
    tokens = file.get("tokenizer.ggml.tokens", list)
    _check_unique(file, tokens)
    kinds = _kinds(file, len(tokens))
    bos = _token_id(file, "bos", len(tokens), defaults.bos)
    eos = _token_id(file, "eos", len(tokens), defaults.eos)
    return Vocabulary(
        source=str(file.path),
        algorithm=algorithm,
        tokens=tokens,
        kinds=kinds,
        bos_token_id=bos,
        eos_token_ids=_ends(file, eos, tokens, kinds),
        unknown_token_id=_token_id(file, "unknown", len(tokens), defaults.unknown),
        add_bos=_wanted(file, "bos", bos, default=defaults.add_bos),
        add_eos=_wanted(file, "eos", eos, default=False),
    )


def _byte_pairs(file: GGUFFile) -> tuple[BytePairs, _Defaults]:
    name = file.get("tokenizer.ggml.pre", str)
    if (cut := CUTS.get(name)) is None:
        known = ", ".join(CUTS)
        message = f"the pre-tokenizer {shown(name)} is not supported (supported: {known})"
        raise _error(file, message)
    merges = file.get("tokenizer.ggml.merges", list)
    return BytePairs(merges, cut), _Defaults(add_bos=cut.add_bos)


def _scored_pieces(file: GGUFFile) -> tuple[ScoredPieces, _Defaults]:
    """The defaults are those of llama.cpp: the first three tokens of Llama 2."""
    key, count = "tokenizer.ggml.scores", len(file.get("tokenizer.ggml.tokens", list))
    scores = file.get(key, np.ndarray)
    if len(scores) != count or scores.dtype.kind not in "fiu" or np.isnan(scores).any():
        raise _error(file, f"'{key}' must hold {count} numbers, one a token")
    pieces = ScoredPieces(
        scores=[float(score) for score in scores.tolist()],
        space_prefix=file.get("tokenizer.ggml.add_space_prefix", bool, True),
    )
    return pieces, _Defaults(add_bos=True, unknown=0, bos=1, eos=2)


ALGORITHMS: Mapping[str, Callable[[GGUFFile], tuple[BytePairs | ScoredPieces, _Defaults]]] = {
    "gpt2": _byte_pairs,
    "llama": _scored_pieces,
}
"""What ``tokenizer.ggml.model`` may say."""


def _error(file: GGUFFile, message: str) -> ModelFileError:
    return ModelFileError(f"{file.path}: {message}")


def _check_unique(file: GGUFFile, tokens: list[str]) -> None:
    if len(set(tokens)) == len(tokens):
        return
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise _error(file, f"the token {shown(token)} is in the vocabulary twice")
        seen.add(token)


def _kinds(file: GGUFFile, count: int) -> list[int]:
    """The kind of each token; without the key all are normal."""
    key = "tokenizer.ggml.token_type"
    kinds = file.get(key, np.ndarray, None)
    if kinds is None:
        return [TokenKind.NORMAL] * count
    if len(kinds) != count or kinds.dtype.kind not in "iu":
        raise _error(file, f"'{key}' must hold {count} whole numbers, one a token")
    return [int(kind) for kind in kinds.tolist()]


def _token_id(file: GGUFFile, name: str, count: int, default: int | None = None) -> int | None:
    """The value of a key that names a token, else the default if it lies within the vocabulary."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.get(key, int, None)
    if value is None:
        return default if default is not None and default < count else None
    if not 0 <= value < count:
        raise _error(file, f"'{key}' is {value}, with {count} tokens")
    return value


def _wanted(file: GGUFFile, name: str, token: int | None, *, default: bool) -> bool:
    """Whether a prompt gets this token, which must then be known."""
    wanted = file.get(f"tokenizer.ggml.add_{name}_token", bool, default)
    if wanted and token is None:
        article = "a BOS" if name == "bos" else "an EOS"
        key = f"tokenizer.ggml.{name}_token_id"
        raise _error(file, f"wants {article} token but names none ('{key}')")
    return wanted


def _ends(file: GGUFFile, eos: int | None, tokens: list[str], kinds: list[int]) -> tuple[int, ...]:
    """The tokens that end an answer, EOS first: those that keys name, those that are well known."""
    ends = [eos, *(_token_id(file, name, len(tokens)) for name in ("eot", "eom"))]
    ends += [
        index
        for index, kind in enumerate(kinds)
        if kind == TokenKind.CONTROL and tokens[index] in END_TEXTS
    ]
    return tuple(dict.fromkeys(end for end in ends if end is not None))
