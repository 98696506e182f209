"""StructuredOutputs: the form that an answer must have."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Mapping, Sequence
from typing import Any

from kvreuse.errors import RequestError, shown

FIELDS = ("json", "json_object", "regex", "choice", "grammar")
"""The forms; one of them is asked for at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """One form, and only one, that an answer must have. vLLM's names (``structured_outputs``).

    Tokens that would leave the form cannot be chosen, and the answer ends where the form is
    complete. JSON comes on one line, with ``, `` and ``: `` between, so that no model can fill its
    answer with blanks; ``x-guidance`` in a schema says otherwise. Raises RequestError, naming the
    field, for none, for several, and for what cannot be a form; whether a form can be followed is
    found out when the request is added.
    """

    json: Mapping[str, Any] | str | None = None
    """A JSON schema, as a dictionary or as text; kept as text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression for the whole answer, in the syntax of Rust's ``regex``: no
    look-around, no back-references."""
    choice: Sequence[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar in Lark's notation, as llguidance reads it; it begins at ``start``."""

    def __post_init__(self) -> None:
        """Check that there is one form, and make it immutable."""
        if not isinstance(self.json_object, bool):
            raise _wrong("json_object", "true or false", self.json_object)
        given = [name for name in FIELDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise RequestError(
                f"structured_outputs needs one of {', '.join(FIELDS)}, and only one; got {found}"
            )
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text):
                raise _wrong(name, "a text, and not empty", text)
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))

    @property
    def form(self) -> str:
        """Which of the fields is set."""
        return next(name for name in FIELDS if getattr(self, name) not in (None, False))


def _schema(schema: Any) -> str:
    """A JSON schema as text. RequestError unless it is an object."""
    try:
        value = json_module.loads(schema) if isinstance(schema, str) else schema
        if isinstance(value, Mapping):
            return json_module.dumps(dict(value), allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(f"structured_outputs.json is no JSON: {error}") from None
    raise _wrong("json", "a JSON schema: an object", schema)


def _choices(choice: Any) -> tuple[str, ...]:
    """The texts to choose from as a tuple. RequestError unless there are any, none empty."""
    texts = tuple(choice) if isinstance(choice, (list, tuple)) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _wrong("choice", "a list of texts, none of them empty", choice)
    return texts


def _wrong(name: str, expected: str, value: Any) -> RequestError:
    return RequestError(f"structured_outputs.{name} must be {expected}, got {shown(value, 80)}")
