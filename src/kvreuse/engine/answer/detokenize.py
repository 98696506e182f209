"""Incremental detokenization of an answer: whole characters only, and stop texts cut off."""

from __future__ import annotations

from kvreuse.engine.answer.stops import StopTexts
from kvreuse.text.tokenizer import IncrementalDecoder


class TextStream:
    """Turns the tokens of one answer into text; text that was emitted never changes.

    Stop texts are searched in the decoded text, so they may span tokens. Text that may be the start
    of a stop text is held back until that is decided. Of several stop texts the one that is
    complete first counts, and of those that end together the longest.
    """

    __slots__ = (
        "_decoder",
        "_emitted",
        "_held",
        "_include_stop",
        "_min_tokens",
        "_num_tokens",
        "_stops",
        "stopped_by",
    )

    def __init__(
        self,
        decoder: IncrementalDecoder,
        stops: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """A stop text that is complete within the first ``min_tokens`` tokens does not count."""
        self._decoder = decoder
        self._stops = StopTexts(stops) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self._emitted = bytearray()  # UTF-8; a bytearray grows in place, a str does not
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All the text emitted so far."""
        return self._emitted.decode()

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that has become final. Sets ``stopped_by``."""
        self._num_tokens += 1
        return self._take(self._decoder.push(token_id))

    def finish(self) -> str:
        """End the answer; returns the text held back, an incomplete character included."""
        if self.stopped_by is not None:
            return ""
        last = self._take(self._decoder.flush())
        held, self._held = self._held, ""
        return last + (self._emit(held) if self.stopped_by is None else "")

    def _take(self, piece: str) -> str:
        """Search the text held back and ``piece`` for a stop text; emit what is final."""
        stops = self._stops
        if stops is None:
            return self._emit(piece)
        pending, before = self._held + piece, len(self._held)
        found = stops.find(piece)
        while found is not None and self._num_tokens <= self._min_tokens:
            found = stops.find(piece, found[0])
        if found is not None:
            end, self.stopped_by = before + found[0], found[1]
            self._held = ""
            return self._emit(pending[: end if self._include_stop else end - len(found[1])])
        safe = len(pending) - stops.held
        self._held = pending[safe:]
        return self._emit(pending[:safe])

    def _emit(self, piece: str) -> str:
        self._emitted += piece.encode()
        return piece
