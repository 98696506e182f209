"""Framing: how the events of a stream are written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Framing:
    """The media type of a stream, how one JSON object is written, and what ends it."""

    media_type: str
    write: Callable[[Mapping[str, Any]], bytes]
    end: bytes = b""


def compact(data: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8, without spaces."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


SSE = Framing(
    "text/event-stream",
    lambda data: b"data: " + compact(data) + b"\n\n",
    b"data: [DONE]\n\n",
)
"""Server-sent events without names, and ``[DONE]`` at the end, as OpenAI writes them."""

NDJSON = Framing("application/x-ndjson", lambda data: compact(data) + b"\n")
"""One JSON object a line."""
