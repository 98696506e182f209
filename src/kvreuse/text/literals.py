"""Literals: tokens that are found in a text as they are, before anything else looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tokenizers import AddedToken, Tokenizer, models


class Literals:
    """Cuts a text at control and user-defined tokens: the leftmost first, the longest of these."""

    def __init__(
        self, texts: Mapping[int, str], special: frozenset[int], *, space: str = " "
    ) -> None:
        """``texts``: token -> its text, with ``space`` for a space.

        Those in ``special`` are found only where asked for.
        """
        self._space = space
        self._rest = max(texts, default=0) + 1  # the id of what lies between
        plain = sorted(texts.keys() - special)
        self._plain = self._pipeline(texts, plain)
        self._parsing = self._pipeline(texts, [*plain, *sorted(texts.keys() & special)])

    def split(self, text: str, *, parse_special: bool) -> Iterator[int | str]:
        """Token ids, and the texts between them; none is empty."""
        pipeline = self._parsing if parse_special else self._plain
        if pipeline is None:
            if text:
                yield text
            return
        found = pipeline.encode(text, add_special_tokens=False)
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            yield text[start:end] if token == self._rest else token

    def starts(self, text: str) -> list[int]:
        """Where in a text the tokens start that are not blank, in characters, special ones too."""
        if self._parsing is None:
            return []
        found = self._parsing.encode(text.replace(" ", self._space), add_special_tokens=False)
        return [
            start
            for token, (start, end) in zip(found.ids, found.offsets, strict=True)
            if token != self._rest and not text[start:end].isspace()
        ]

    def _pipeline(self, texts: Mapping[int, str], ids: Iterable[int]) -> Tokenizer | None:
        """A tokenizer that knows these tokens, and takes all else as one unknown word."""
        tokens = {texts[index]: index for index in ids if texts[index]}
        if not tokens:
            return None
        pipeline = Tokenizer(models.WordLevel({**tokens, "": self._rest}, unk_token=""))
        pipeline.add_tokens([AddedToken(token, normalized=False) for token in tokens])
        return pipeline
