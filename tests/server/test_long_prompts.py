"""Long prompts: what takes long about them happens in a thread of its own, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvreuse.llm import LLM
from kvreuse.server import body as bodies
from kvreuse.server import service
from kvreuse.server.config import ServerConfig
from kvreuse.text import chats, parts

from .running import running, wait_until

PATH = "/v1/chat/completions"
SHORT = {"temperature": 0, "max_tokens": 2, "ignore_eos": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chat(word: str) -> dict[str, Any]:
    """A chat that differs from others of its kind in a word in the middle."""
    content = f"Tell me about the sea, the wind and the sand, and then about the {word}."
    return {"messages": [{"role": "user", "content": content}], **SHORT}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which the parts of chats are worked out; every prompt counts as long."""
    monkeypatch.setattr(service, "INLINE_BYTES", 0)
    return watched(monkeypatch, chats, "prompt_parts")


def watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The names of the threads in which a function of a module will be called."""
    seen: list[str] = []
    plain: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        seen.append(threading.current_thread().name)
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return seen


@pytest.mark.parametrize("options", [{}, USAGE], ids=["whole", "stream"])
def test_usage_is_worked_out_in_a_thread(
    llm: LLM, threads: list[str], options: dict[str, Any]
) -> None:
    with running(llm) as server, server.http() as http:
        http.post("/reset_prefix_cache")
        http.post(PATH, json=chat("shore") | {"stream": True})
        reply = http.post(PATH, json=chat("beach") | options)
    assert '"message 0 (user)"' in reply.text or '"message 1 (user)"' in reply.text
    assert threads
    assert all(name.startswith("kvreuse prompts") for name in threads)


def test_the_log_is_written_in_a_thread(llm: LLM, threads: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with running(llm, ServerConfig(request_log=str(path))) as server, server.http() as http:
        http.post("/reset_prefix_cache")
        for word in ("shore", "beach"):
            http.post(PATH, json=chat(word) | {"stream": True})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[1]["miss"]["part"].endswith("(user)")
    assert threads
    assert all(name.startswith("kvreuse prompts") for name in threads)


def test_what_nobody_reads_is_not_worked_out(llm: LLM, threads: list[str]) -> None:
    with running(llm) as server, server.http() as http:
        http.post("/reset_prefix_cache")
        for word in ("shore", "beach"):
            reply = http.post(PATH, json=chat(word) | {"stream": True})
            assert reply.text.endswith("data: [DONE]\n\n")
    assert not threads


def test_other_streams_go_on_meanwhile(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prompt of ten thousand characters, whose parts take as long to find as one of megabytes."""
    inside, go_on = threading.Event(), threading.Event()
    plain = parts.prompt_parts

    def slowly(template: Any, text: str, *arguments: Any, **options: Any) -> Any:
        if len(text) > len(spaces):
            inside.set()
            go_on.wait(30)
        return plain(template, text, *arguments, **options)

    spaces = " " * 10_000  # few tokens
    monkeypatch.setattr(chats, "prompt_parts", slowly)
    config = ServerConfig(request_log=str(tmp_path / "log"))
    with running(llm, config) as server, server.http() as http, server.http() as other:
        http.post("/reset_prefix_cache")
        first, second = chat(f"shore{spaces}"), chat(f"beach{spaces}")
        assert http.post(PATH, json=first).status_code == 200
        replies: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: replies.append(http.post(PATH, json=second)))
        asking.start()
        wait_until(inside.is_set)
        for turn in range(2):  # short ones have a miss of their own, in words
            reply = other.post(PATH, json=chat(f"dune {turn}") | {"stream": True}).text
            assert reply.endswith("data: [DONE]\n\n")
        assert other.get("/v1/cache").status_code == 200
        assert asking.is_alive()
        go_on.set()
        asking.join()
    assert replies[0].json()["usage"]["kvreuse"]["part"].endswith("(user)")


def test_large_bodies_are_checked_in_a_thread(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch, bodies, "parse")
    with running(llm) as server, server.http() as http:
        for path, body in (
            (PATH, {"messages": [{"role": "user", "content": " " * 9000}], "max_tokens": 1}),
            ("/v1/completions", {"prompt": " " * 9000, "max_tokens": 1}),
            ("/tokenize", {"prompt": " " * 9000}),
            ("/detokenize", {"tokens": [500] * 9000}),
            ("/v1/cache/lookup", {"prompt": " " * 9000}),
            ("/v1/cache/prefill", {"prompt": " " * 9000}),
            ("/apply-template", {"messages": [{"role": "user", "content": " " * 9000}]}),
        ):
            assert http.post(path, json=body).status_code == 200, path
    assert len(seen) == 7
    assert all(name.startswith("kvreuse prompts") for name in seen)


def test_only_forced_calls_wait_for_grammars(llm: LLM) -> None:
    go_on = threading.Event()
    tool = {"type": "function", "function": {"name": "weather"}}
    with running(llm) as server, server.http() as http:
        server.app.state.service._forms.submit(go_on.wait, 30)
        start = time.monotonic()
        for choice in ("auto", "none"):
            body = chat("weather") | {"tools": [tool], "tool_choice": choice}
            assert http.post(PATH, json=body).status_code == 200
        body = chat("weather") | {"response_format": {"type": "text"}}
        assert http.post(PATH, json=body).status_code == 200
        assert time.monotonic() - start < 30
        go_on.set()
        body = chat("weather") | {"tools": [tool], "tool_choice": "required"}
        assert http.post(PATH, json=body).status_code == 200
