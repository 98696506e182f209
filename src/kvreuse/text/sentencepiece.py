"""SentencePiece BPE: Llama 2, Mistral, TinyLlama, Gemma (Kudo and Richardson, 2018).

As ``bpe_model.cc`` of the package ``sentencepiece``: a space is written ``▁``, and of all
neighbours that together are a piece those are joined first whose piece has the highest score, the
leftmost of equals. A list of merges cannot say this: two pairs that make one piece have one score,
but would have two ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from kvreuse.errors import shown
from kvreuse.text.literals import Literals
from kvreuse.text.vocabulary import (
    LITERAL_KINDS,
    SPECIAL_KINDS,
    ScoredPieces,
    TokenKind,
    Vocabulary,
)

SPACE = "\u2581"
MAX_REMEMBERED = 1 << 15  # words whose ids are remembered: a few MB
MAX_REMEMBERED_LENGTH = 32
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePieceBPE:
    """Text to ids by the scores of pieces.

    ``space_prefix`` puts a space in front of a text and behind each control or user-defined token.
    A character that is no piece becomes its UTF-8 bytes where there is a token for each of the 256;
    otherwise a run of such characters becomes one unknown token, and nothing if there is none.
    """

    def __init__(self, vocabulary: Vocabulary, pieces: ScoredPieces) -> None:
        """Raises ``ModelFileError`` where a byte token does not say which byte it is."""
        tokens, kinds = vocabulary.tokens, vocabulary.kinds
        self.space_prefix = pieces.space_prefix
        self._tokens = tokens
        self._special = vocabulary.ids_of(*SPECIAL_KINDS)
        self._unknown = vocabulary.unknown_token_id
        normal = [index for index, kind in enumerate(kinds) if kind == TokenKind.NORMAL]
        self._ids = {tokens[index]: index for index in normal}
        self._costs = {tokens[index]: -pieces.scores[index] for index in normal}
        self._byte_of = _bytes_of(vocabulary)
        byte_ids = {byte: token for token, byte in self._byte_of.items()}
        self._byte_ids = byte_ids if len(byte_ids) == 256 else None
        texts = {i: tokens[i].replace(" ", SPACE) for i in vocabulary.ids_of(*LITERAL_KINDS)}
        self.literals = Literals(texts, self._special, space=SPACE)
        self._words = _word_pattern(self._ids)
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text of valid Unicode, without BOS and EOS."""
        prefix = SPACE if self.space_prefix else ""
        ids: list[int] = []
        escaped = text.replace(" ", SPACE)
        for part in self.literals.split(escaped, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                for word in self._words.findall(prefix + part):
                    ids += self._remembered.get(word) or self._encode_word(word)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; its id lies within the vocabulary."""
        byte = self._byte_of.get(token_id)
        return self._text(token_id).encode() if byte is None else bytes((byte,))

    def _text(self, token_id: int) -> str:
        """The text of a token that is no byte. In a control token, ``▁`` is no space."""
        token = self._tokens[token_id]
        return token if token_id in self._special else token.replace(SPACE, " ")

    def _encode_word(self, word: str) -> list[int]:
        ids = list(self._ids_of(join(word, self._costs)))
        if len(word) <= MAX_REMEMBERED_LENGTH:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[word] = ids
        return ids

    def _ids_of(self, pieces: list[str]) -> Iterator[int]:
        """The ids of the parts that ``join`` made: pieces, and single characters that are none."""
        unknown, after_unknown = self._unknown, False
        for piece in pieces:
            token = self._ids.get(piece)
            if token is not None:
                yield token
            elif self._byte_ids is not None:
                yield from map(self._byte_ids.__getitem__, piece.encode())
            elif unknown is not None and not after_unknown:
                yield unknown
            after_unknown = token is None


def join(word: str, costs: dict[str, float]) -> list[str]:
    """Join neighbouring parts of a word while two make a piece, cheapest first, then leftmost.

    ``costs``: piece -> the negative of its score. The result is pieces, and single characters that
    are no pieces. Takes ``O(n log n)`` for ``n`` characters.
    """
    parts = list(word)  # a part that was joined to its left neighbour is empty
    count = len(parts)
    before, behind = list(range(-1, count - 1)), list(range(1, count + 1))
    cost_of = costs.get
    queue = [  # cost, left, right, length of the piece
        (cost, left, left + 1, 2)
        for left in range(count - 1)
        if (cost := cost_of(word[left : left + 2])) is not None
    ]
    heapify(queue)
    while queue:
        _, left, right, length = heappop(queue)
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue  # one of the two has been joined to another part since
        joined = parts[left] + parts[right]
        parts[left], parts[right] = joined, ""
        behind[left] = end = behind[right]
        if end < count:
            before[end] = left
            if (cost := cost_of(joined + parts[end])) is not None:
                heappush(queue, (cost, left, end, length + len(parts[end])))
        if (start := before[left]) >= 0 and (cost := cost_of(parts[start] + joined)) is not None:
            heappush(queue, (cost, start, left, length + len(parts[start])))
    return [part for part in parts if part]


def _word_pattern(pieces: dict[str, int]) -> re.Pattern[str]:
    """Cuts a text into words that can be joined one by one: no piece reaches from one to the next.

    The cuts lie before each run of ``▁``, except behind a character that some piece has before a
    ``▁``. In real vocabularies hardly any piece does (Gemma: ``>▁</``).
    """
    within = {
        piece[at - 1]
        for piece in pieces
        if SPACE in piece[1:]
        for at in range(1, len(piece))
        if piece[at] == SPACE != piece[at - 1]
    }
    word = f"{SPACE}*[^{SPACE}]+|{SPACE}+"
    if within:
        crossing = "".join(map(re.escape, sorted(within)))
        word = f"(?:{SPACE}*[^{SPACE}]+|{SPACE}+)(?:(?<=[{crossing}]){SPACE}+[^{SPACE}]*)*"
    return re.compile(word)


def _bytes_of(vocabulary: Vocabulary) -> dict[int, int]:
    """Token -> byte, for the tokens of kind byte: ``<0x0A>`` is a line feed."""
    found: dict[int, int] = {}
    for index in sorted(vocabulary.ids_of(TokenKind.BYTE)):
        match = _BYTE_TOKEN.fullmatch(vocabulary.tokens[index])
        if match is None:
            text = shown(vocabulary.tokens[index])
            raise vocabulary.error(f"the byte token {index} must read like <0x0A>, not {text}")
        found[index] = int(match[1], 16)
    return found
