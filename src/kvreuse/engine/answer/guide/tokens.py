"""Adapter of our tokenizer for llguidance: the bytes of every token, and tokenization of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvreuse.errors import RequestError
from kvreuse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

INSTALL = 'structured outputs need llguidance, which is missing: pip install "kvreuse[server]"'
# No token spans a line's end, so text behind one is tokenized as it is in the middle of a text.
_EDGE = "\n"


def llguidance_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """For logits of ``vocab_size`` tokens; takes 0.1 s for 50,000 of them, 0.8 s for 260,000.

    RequestError if llguidance is not installed, or the model has no end-of-sequence token.
    """
    try:
        from llguidance import LLTokenizer  # noqa: PLC0415
    except ImportError:
        raise RequestError(INSTALL) from None
    ends = [token for token in tokenizer.eos_token_ids if token < vocab_size]
    if not ends:
        raise RequestError("structured outputs need a model with an end-of-sequence token")
    wrapped: Any = TokenizerWrapper(tokenizer, vocab_size)
    return LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=ends)


class TokenizerWrapper:
    """The attributes that ``LLTokenizer`` reads, and the call by which it tokenizes text."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        count = min(tokenizer.vocab_size, vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        # Ids beyond the tokenizer's have logits, but no bytes: they are never allowed.
        self.tokens = [tokenizer.token_bytes(index) for index in range(count)]
        self.tokens += [b""] * (vocab_size - count)
        self.special_token_ids = [index for index in range(count) if tokenizer.is_special(index)]
        self._longest = max(map(len, self.tokens))
        self._ids: dict[bytes, int] = {}

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of ``text`` as it follows other text; their bytes are exactly the text's."""
        raw = text.encode() if isinstance(text, str) else text
        text = raw.decode(errors="replace")
        ids = self._encode(text)
        if self._tokenizer.space_prefix:
            edge, length = (" " + _EDGE).encode(), 0
            ids = self._encode(_EDGE + text)
            while edge and ids[length:] and edge.startswith(self.tokens[ids[length]]):
                edge = edge[len(self.tokens[ids[length]]) :]
                length += 1
            ids = ids[length:]
        if b"".join(self.tokens[token] for token in ids) == raw:
            return ids
        return self._greedy(raw)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)

    def _greedy(self, raw: bytes) -> list[int]:
        """Greedy longest-match tokenization; bytes that no token starts with are left out."""
        if not self._ids:
            special = set(self.special_token_ids)
            self._ids = {raw: i for i, raw in enumerate(self.tokens) if raw and i not in special}
        ids, start = [], 0
        while start < len(raw):
            ends = range(min(len(raw), start + self._longest), start, -1)
            end = next((end for end in ends if raw[start:end] in self._ids), None)
            if end is not None:
                ids.append(self._ids[raw[start:end]])
            start = start + 1 if end is None else end
        return ids
