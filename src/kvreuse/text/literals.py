"""Literals: tokens that are found in a text by their exact characters, before it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tokenizers import AddedToken, Tokenizer, models


class Literals:
    """Finds control and user-defined tokens: the leftmost first, of several there the longest."""

    def __init__(
        self, texts: Mapping[int, str], special: frozenset[int], *, space: str = " "
    ) -> None:
        """``texts``: token -> its text, in which spaces are written as ``space``.

        The tokens in ``special`` are found only with ``parse_special``.
        """
        self._space = space
        self._rest = max(texts, default=0) + 1  # an id for the text between tokens
        plain = sorted(texts.keys() - special)
        self._plain = self._pipeline(texts, plain)
        self._parsing = self._pipeline(texts, [*plain, *sorted(texts.keys() & special)])

    def split(self, text: str, *, parse_special: bool) -> Iterator[int | str]:
        """The ids of the tokens found, and the texts between them, in order. No text is empty."""
        pipeline = self._parsing if parse_special else self._plain
        if pipeline is None:
            if text:
                yield text
            return
        found = pipeline.encode(text, add_special_tokens=False)
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            yield text[start:end] if token == self._rest else token

    def starts(self, text: str) -> list[int]:
        """Where tokens start in a text, in characters; special ones too, but no blank ones."""
        if self._parsing is None:
            return []
        found = self._parsing.encode(text.replace(" ", self._space), add_special_tokens=False)
        return [
            start
            for token, (start, end) in zip(found.ids, found.offsets, strict=True)
            if token != self._rest and not text[start:end].isspace()
        ]

    def _pipeline(self, texts: Mapping[int, str], ids: Iterable[int]) -> Tokenizer | None:
        """A tokenizer with these tokens, to which all other text is one unknown word."""
        tokens = {texts[index]: index for index in ids if texts[index]}
        if not tokens:
            return None
        pipeline = Tokenizer(models.WordLevel({**tokens, "": self._rest}, unk_token=""))
        pipeline.add_tokens([AddedToken(token, normalized=False) for token in tokens])
        return pipeline
