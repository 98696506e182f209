"""TurnMemory: the tokens of conversations that were served, so that the next turn has the same.

A client sends back the text of an answer, not its tokens, and encoding that text may give others
than were generated: the cache would miss from there on. Where a prompt starts with a text that was
served, the tokens that it was served with are kept, and only the rest is encoded.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.text.offsets import spells
from kvreuse.text.tokenizer import Tokenizer

CAPACITY = 1 << 20
"""Tokens remembered, of all conversations together: 4 MiB."""


class TurnMemory:
    """Encodes rendered chats. What it returns always spells the text. Threads may share it.

    Texts are cut only where a control or user-defined token follows: encoding cuts there
    too, so both halves have the tokens that they have as one text. Texts are found by SHA-256 of
    salt and text; conversations of different salts know nothing of each other.
    """

    def __init__(self, tokenizer: Tokenizer, capacity: int = CAPACITY) -> None:
        """``capacity`` tokens are remembered, those of the conversations used last."""
        self._tokenizer = tokenizer
        self._capacity = capacity
        self.num_tokens = 0  # of all texts together
        self._turns: OrderedDict[bytes, npt.NDArray[np.int32]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Texts remembered."""
        return len(self._turns)

    def encode(self, text: str, salt: str | None = None) -> list[int]:
        """The tokens of a chat's text: those it was served with, as far as it was served.

        RequestError as for :meth:`Tokenizer.encode`.
        """
        kept: list[int] = []
        end = 0
        for cut, name in self._cuts(text, salt):
            with self._lock:
                found = self._turns.get(name)
                if found is not None:
                    self._turns.move_to_end(name)
                    kept, end = found.tolist(), cut
        return kept + self._tokenizer.encode(text[end:], add_special_tokens=False)

    def remember(
        self,
        text: str,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        salt: str | None = None,
    ) -> None:
        """The prompt ``text``, encoded as ``prompt_ids``, was answered with ``answer_ids``.

        Control tokens at the end are the template's to write again, or not. Nothing is remembered
        of tokens that do not spell a text, such as half a character.
        """
        tokenizer = self._tokenizer
        ids = [*prompt_ids, *answer_ids]
        while ids and tokenizer.is_special(ids[-1]):
            ids.pop()
        answer = ids[len(prompt_ids) :]
        text += tokenizer.decode(answer, skip_special_tokens=False, continuation=True)
        if not answer or len(ids) > self._capacity or not spells(tokenizer, ids, text):
            return
        name = _digest(salt)
        name.update(text.encode())
        with self._lock:
            self._forget(name.digest())
            self._turns[name.digest()] = np.asarray(ids, dtype=np.int32)
            self.num_tokens += len(ids)
            while self.num_tokens > self._capacity:
                self._forget(next(iter(self._turns)))

    def _forget(self, name: bytes) -> None:
        self.num_tokens -= len(self._turns.pop(name, ()))

    def _cuts(self, text: str, salt: str | None) -> Iterator[tuple[int, bytes]]:
        """Where ``text`` may be cut, in order, and the name of what lies before."""
        if not self._turns:
            return
        digest, done = _digest(salt), 0
        for cut in self._tokenizer.literal_starts(text):
            digest.update(text[done:cut].encode("utf-8", "surrogatepass"))
            done = cut
            yield cut, digest.digest()


def _digest(salt: str | None) -> Any:
    """A SHA-256 that has taken in a salt; no salt differs from every salt."""
    digest = hashlib.sha256()
    if salt is not None:
        digest.update(hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest())
    digest.update(b"\xff")  # never in UTF-8
    return digest
