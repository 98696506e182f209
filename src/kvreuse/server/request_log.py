"""The request log: one JSON line a request, which ``kvreuse why`` reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from kvreuse.api.miss import Miss
from kvreuse.api.outputs import RequestOutput


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from."""

    route: str
    http_id: str
    """The id of the HTTP reply; empty where it has none."""
    prompt_cache_key: str | None = None
    user: str | None = None


class RequestLog:
    """Appends a line to a file when a request has ended."""

    def __init__(self, path: str, model: str, *, log_prompts: bool) -> None:
        """``model`` is the name of the model. OSError where the file cannot be written."""
        self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._model = model
        self._log_prompts = log_prompts
        self._lock = threading.Lock()

    def write(self, output: RequestOutput, origin: Origin, salt: str | None) -> None:
        """Append one line. Threads may do so at once."""
        line = record(output, origin, salt, self._model, text=self._log_prompts)
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def record(
    output: RequestOutput, origin: Origin, salt: str | None, model: str, *, text: bool
) -> dict[str, Any]:
    """The fields of a line: lengths in tokens, times in seconds; ``text``: also all texts."""
    took, miss = output.metrics, output.miss
    line: dict[str, Any] = {
        "time": time.time(),
        "id": output.request_id,
        "http_id": origin.http_id,
        "route": origin.route,
        "model": model,
        "cache_salt": None if salt is None else _name_of(salt),
        "prompt_cache_key": origin.prompt_cache_key,
        "user": origin.user,
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "generated_tokens": took.num_generated_tokens,
        "finish_reasons": [answer.finish_reason for answer in output.outputs],
        "preemptions": took.num_preemptions,
        "miss": None if miss is None else _miss(miss, text=text),
        "seconds": {
            "queue": _between(took.arrival_time, took.first_scheduled_time),
            "prefill": _between(took.first_scheduled_time, took.first_token_time),
            "decode": _between(took.first_token_time, took.finished_time),
            "first_token": took.time_to_first_token,
            "total": took.finished_time - took.arrival_time,
        },
    }
    if text:
        line["prompt"] = output.prompt
        line["prompt_token_ids"] = list(output.prompt_token_ids)
        line["answers"] = [answer.text for answer in output.outputs]
    return line


def _name_of(salt: str) -> str:
    """A digest, so that salts can be told apart but not read."""
    return hashlib.sha256(salt.encode()).hexdigest()[:16]


def _miss(miss: Miss, *, text: bool) -> dict[str, Any]:
    """The fields of a miss; with ``text`` also the texts around it."""
    fields: dict[str, Any] = {
        "reason": miss.reason.value,
        "index": miss.index,
        "field": miss.field,
        "part": miss.part,
        "lost_tokens": miss.lost_tokens,
        "lost_seconds": miss.lost_seconds,
    }
    if text:
        fields |= {
            "cached": list(miss.cached),
            "before": miss.before,
            "prompt_text": miss.prompt_text,
            "cached_text": miss.cached_text,
        }
    return fields


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
