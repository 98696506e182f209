"""Finds the end of JSON in a text that comes in pieces, or the character that breaks it."""

from __future__ import annotations

import re

MAX_DEPTH = 100
"""Brackets within brackets."""

_CLOSES = {"{": "}", "[": "]"}
# Outside of strings JSON has nothing but these characters.
_OUTSIDE = frozenset('{}[]:," \t\r\n+-.0123456789abcdefghijklmnopqrstuvwxyzE')
_PLAIN = re.compile(r'[^"\\]*')


class JsonExtent:
    """Follows the brackets and strings of one object or array; other syntax is not checked."""

    def __init__(self) -> None:
        """Before its first bracket."""
        self._closing: list[str] = []  # what the open brackets wait for
        self._begun = False
        self._in_string = False
        self._escaped = False
        self.at = 0
        """How far a text was followed."""
        self.ended: bool | None = None
        """True: the object or array ended at ``at``. False: the character there cannot be."""

    def follow(self, text: str) -> None:
        """Continue in ``text``, which begins with the text of the last call."""
        while self.at < len(text) and self.ended is None:
            if self._in_string:
                self._string(text)
            elif self._outside(text[self.at]):
                self.at += 1
                self.ended = True if self._begun and not self._closing else None
            else:
                self.ended = False

    def _outside(self, character: str) -> bool:
        """Take a character outside of strings; False where it cannot be."""
        if not self._begun:
            self._begun = character in _CLOSES
        if character in _CLOSES:
            self._closing.append(_CLOSES[character])
        elif character in "}]":
            return bool(self._closing) and self._closing.pop() == character
        self._in_string = character == '"'
        space = character in " \t\r\n"
        return (self._begun and character in _OUTSIDE and len(self._closing) <= MAX_DEPTH) or space

    def _string(self, text: str) -> None:
        """Go on within a string."""
        if self._escaped:
            self._escaped = False
            self.at += 1
            return
        plain = _PLAIN.match(text, self.at)
        self.at = plain.end() if plain is not None else self.at
        if self.at < len(text):
            self._escaped = text[self.at] == "\\"
            self._in_string = self._escaped
            self.at += 1
