"""The way of a prompt, from the socket to its page: few packages, each entered once."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

import kvreuse
from kvreuse.api.ask import Ask
from kvreuse.engine.engine import Engine
from kvreuse.model.decoder import Decoder

PACKAGE = Path(kvreuse.__file__).parent
MOST_ROOMS = 8


def rooms_of(frame: FrameType | None, last: str) -> list[str]:
    """The packages through which a call comes into ``last``, each as often as it is entered."""
    rooms = [last]
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            rooms.append(path.relative_to(PACKAGE).parts[0])
        frame = frame.f_back
    return [room for room, _ in itertools.groupby(reversed(rooms))]


def test_a_prompt_enters_few_rooms_and_none_twice(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from where its ask is made, the engine gets it, and its rows are computed."""
    seen: list[list[str]] = []

    def watched(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(rooms_of(sys._getframe(1), ROOMS[owner]))
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    watched(Ask, "__init__")
    watched(Engine, "submit")
    watched(Decoder, "run")
    message = {"role": "user", "content": "Which way does a prompt go?"}
    reply = http.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 2})
    assert reply.status_code == 200
    assert {chain[-1] for chain in seen} == {"api", "engine", "model"}
    for chain in seen:
        assert len(chain) == len(set(chain)), f"a room is entered twice: {chain}"
    rooms = set(itertools.chain(*seen)) | {
        "kv",
        "ops",
    }  # the pages, and the kernels that write them
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


ROOMS = {Ask: "api", Engine: "engine", Decoder: "model"}
