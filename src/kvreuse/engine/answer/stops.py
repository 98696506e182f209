"""StopTexts: finds stop texts in a text that grows, in time linear in the new text.

An automaton over all stop texts (Aho and Corasick, "Efficient string matching", CACM 1975): a state
is the longest end of the text so far that a stop text starts with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_ROOT = 0


class StopTexts:
    """The automaton, and its state for one text."""

    __slots__ = ("_depths", "_fails", "_held", "_moves", "_state", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """Start with an empty text. Time and memory: the characters of ``stops``."""
        self._moves: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._stops: list[str | None] = [None]  # the longest stop text that ends in each state
        for stop in stops:
            self._add(stop)
        self._fails = [_ROOT] * len(self._moves)  # the longest proper end that is a state, too
        self._held = [0] * len(self._moves)
        self._link()
        self._state = _ROOT

    @property
    def held(self) -> int:
        """Length of the longest end of the text that is the beginning of a longer stop text."""
        return self._held[self._state]

    def find(self, piece: str, start: int = 0) -> tuple[int, str] | None:
        """Go on by ``piece[start:]``; (end in ``piece``, stop text) of the first that is complete.

        Of those that are complete together the longest counts. After one was found, the rest of
        ``piece`` has not been looked at.
        """
        moves, fails, state = self._moves, self._fails, self._state
        for at in range(start, len(piece)):
            character = piece[at]
            while state and character not in moves[state]:
                state = fails[state]
            state = moves[state].get(character, _ROOT)
            stop = self._stops[state]
            if stop is not None:
                self._state = state
                return at + 1, stop
        self._state = state
        return None

    def _add(self, stop: str) -> None:
        state = _ROOT
        for character in stop:
            following = self._moves[state].get(character)
            if following is None:
                following = self._moves[state][character] = len(self._moves)
                self._moves.append({})
                self._depths.append(self._depths[state] + 1)
                self._stops.append(None)
            state = following
        self._stops[state] = stop

    def _link(self) -> None:
        """Shorter states before longer ones."""
        waiting = deque(self._moves[_ROOT].values())
        while waiting:
            state = waiting.popleft()
            fail = self._fails[state]
            self._held[state] = self._depths[state] if self._moves[state] else self._held[fail]
            if self._stops[state] is None:
                self._stops[state] = self._stops[fail]
            for character, following in self._moves[state].items():
                end = fail
                while end and character not in self._moves[end]:
                    end = self._fails[end]
                self._fails[following] = self._moves[end].get(character, _ROOT)
                waiting.append(following)
