"""Traces in the Mooncake format: one request a line, a hash for each block of its prompt.

Source of the format: github.com/kvcache-ai/Mooncake. A line is ``{"timestamp": ms,
"input_length": tokens, "output_length": tokens, "hash_ids": [...]}``; two blocks have the same hash
if they and all before them are the same. The last block may be filled in part.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreuse.errors import TraceError

Int64Array = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class TracedRequest:
    """A prompt by its blocks."""

    blocks: tuple[int, ...]
    """A number for each block, the same for the same tokens after the same start."""
    num_tokens: int
    """Tokens of the prompt."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    requests: tuple[TracedRequest, ...]
    block_tokens: int
    """Tokens of a full block."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(request.num_tokens for request in self.requests)

    @property
    def num_blocks(self) -> int:
        """Different blocks: with room for so many nothing is ever evicted."""
        return len({block for request in self.requests for block in request.blocks})

    def tokens(self, request: TracedRequest) -> Int64Array:
        """int64[blocks + 1]: tokens in the first 0, 1, 2, ... blocks of ``request``."""
        ends = np.arange(len(request.blocks) + 1, dtype=np.int64) * self.block_tokens
        return np.minimum(ends, request.num_tokens)


def read_trace(path: Path) -> Trace:
    """Read a trace. TraceError, naming the line, for one that is not in the format."""
    rows: list[tuple[float, list[int], int]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                rows.append(_row(line, f"{path}, line {number}"))
    if not rows:
        raise TraceError(f"{path} holds no requests")
    rows.sort(key=lambda row: row[0])
    block_tokens = _block_tokens(rows, path)
    names: dict[tuple[int, int], int] = {}
    requests = []
    for _, hashes, num_tokens in rows:
        blocks: list[int] = []
        for value in hashes:  # numbered by what is before, too, so that they form a tree
            start = blocks[-1] if blocks else -1
            blocks.append(names.setdefault((start, value), len(names)))
        requests.append(TracedRequest(tuple(blocks), num_tokens))
    return Trace(tuple(requests), block_tokens)


def session_ends(trace: Trace) -> list[bool]:
    """For each request whether it ends its session: no later one extends its last full block."""
    seen: set[int] = set()
    ends: list[bool] = []
    for request in reversed(trace.requests):
        full = request.num_tokens // trace.block_tokens
        last = request.blocks[:full] or request.blocks
        ends.append(bool(last) and last[-1] not in seen)
        seen.update(request.blocks)
    return ends[::-1]


def _row(line: str, where: str) -> tuple[float, list[int], int]:
    """(timestamp, hashes, tokens) of a line."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: not JSON") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: not an object")
    timestamp: Any = row.get("timestamp")
    hashes: Any = row.get("hash_ids")
    tokens: Any = row.get("input_length")
    if not _is_number(timestamp):
        raise TraceError(f"{where}: timestamp must be a number, got {timestamp!r}")
    if not isinstance(hashes, list) or not all(_is_number(value, int) for value in hashes):
        raise TraceError(f"{where}: hash_ids must be a list of integers")
    if not _is_number(tokens, int) or tokens < len(hashes):
        raise TraceError(
            f"{where}: input_length must be the prompt's tokens, at least one a block, "
            f"got {tokens!r}"
        )
    return timestamp, hashes, tokens


def _block_tokens(rows: list[tuple[float, list[int], int]], path: Path) -> int:
    """The least power of two, or else number, that gives every prompt its number of blocks."""
    least, most = 1, 1 << 40
    for _, hashes, tokens in rows:
        if hashes:
            least = max(least, -(-tokens // len(hashes)))
            most = min(most, (tokens - 1) // (len(hashes) - 1) if len(hashes) > 1 else most)
    power = 1 << (least - 1).bit_length()
    if least > most:
        raise TraceError(
            f"{path}: no size of a block fits all prompts: one needs blocks of at least {least} "
            f"tokens, another of at most {most}"
        )
    return power if power <= most else least


def _is_number(value: Any, kind: type | tuple[type, ...] = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
