"""Texts to measure on, cut into windows of tokens."""

from __future__ import annotations

import dataclasses
import pydoc_data.topics
from pathlib import Path

import numpy as np

from kvreuse.errors import ConfigError
from kvreuse.ops.batch import Int32Array
from kvreuse.text.tokenizer import Tokenizer

STANDARD_NAME = "pydoc_data.topics"
CHARACTERS_A_TOKEN = 16  # more than any text has that a model reads well
LEAST_TOKENS = 2  # the first one is predicted by nothing


@dataclasses.dataclass(frozen=True)
class Text:
    """A text and its name, as results tell it."""

    name: str
    content: str


def standard_text() -> Text:
    """English that every Python brings along: the topics of its interactive help."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return Text(STANDARD_NAME, "\n\n".join(topics[name] for name in sorted(topics)))


def read_text(path: Path) -> Text:
    """The text of a UTF-8 file, named without its folder. ConfigError where it is none."""
    try:
        return Text(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}: convert it first") from None


def windows_of(text: Text, tokenizer: Tokenizer, context: int, count: int) -> list[Int32Array]:
    """At most ``count`` windows of ``context`` tokens, int32, one after the other from the start.

    Each begins with the BOS token where the model wants one. A text too short for one window
    makes one shorter window. ConfigError where there is nothing to predict in it.
    """
    opening = [tokenizer.bos_token_id] if tokenizer.add_bos else []
    size = context - len(opening)
    some = text.content[: size * count * CHARACTERS_A_TOKEN]
    ids = tokenizer.encode(some, add_special_tokens=False, parse_special=False)
    full = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:count]
    windows = [np.array(opening + window, dtype=np.int32) for window in full or [ids[:size]]]
    if len(windows[0]) < LEAST_TOKENS:
        raise ConfigError(
            f"{text.name} has {len(ids)} tokens; a perplexity needs {LEAST_TOKENS} or more"
        )
    return windows
