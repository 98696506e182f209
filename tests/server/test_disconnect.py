"""Clients that go away: their requests end within a step, in whatever phase, and hurt nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import Running, running, wait_until

LONG = {"ignore_eos": True, "max_tokens": 900, "temperature": 0}


def connect(server: Running, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A request whose reply is not read."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=30)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    raw.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return raw


@pytest.fixture
def alone(llm: LLM) -> Iterator[Running]:
    """A server of its own, at whose end nothing is left."""
    with running(llm) as server:
        yield server
        server.settles()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_while_it_decodes(alone: Running, stream: bool, n: int) -> None:
    engine = alone.llm.engine
    aborted = engine.counters.aborted
    body = {"prompt": "The sea", "stream": stream, "n": n, **LONG}
    with connect(alone, body):
        wait_until(lambda: engine.num_running == n)
        before = engine.counters.generated_tokens
        wait_until(lambda: engine.counters.generated_tokens > before + 3 * n)
    wait_until(lambda: not engine.has_unfinished)
    assert engine.counters.aborted == aborted + 1
    alone.settles()


@pytest.mark.parametrize("stream", [False, True])
def test_while_it_prefills(alone: Running, stream: bool) -> None:
    engine, random = alone.llm.engine, list(range(2000, 2900))
    steps = engine.counters.steps
    with connect(alone, {"prompt": random, "stream": stream, **LONG, "max_tokens": 100}):
        wait_until(lambda: engine.num_running == 1)
    wait_until(lambda: not engine.has_unfinished)
    assert engine.counters.steps <= steps + 6


@pytest.mark.parametrize("stream", [False, True])
def test_while_it_waits(llm: LLM, stream: bool) -> None:
    with running(llm) as server:
        engine = llm.engine
        seats = llm.config.max_num_seqs
        first = [connect(server, {"prompt": f"Number {at}", **LONG}) for at in range(seats)]
        wait_until(lambda: engine.num_running == seats)
        last = connect(server, {"prompt": "The last", "stream": stream, **LONG})
        wait_until(lambda: engine.num_waiting == 1)
        last.close()
        wait_until(lambda: engine.num_waiting == 0)
        assert engine.num_running == seats
        for one in first:
            one.close()
        server.settles()


def test_others_get_their_answers(alone: Running) -> None:
    with alone.http() as http:
        body = {"prompt": "The sea is", "temperature": 0, "max_tokens": 40, "ignore_eos": True}
        expected = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        gone = [connect(alone, {"prompt": "The sea is", "stream": True, **LONG}) for _ in range(6)]
        wait_until(lambda: alone.llm.engine.num_running == 6)
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            for one in gone:
                one.close()
            lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: {")]
        text = "".join(json.loads(line)["choices"][0]["text"] for line in lines)
        assert text == expected


def test_too_many_are_told_when_to_come_again(llm: LLM) -> None:
    seats = llm.config.max_num_seqs
    with running(llm, ServerConfig(max_queue=2)) as server, server.http() as http:
        body = {"prompt": "Number", "n": seats, **LONG}
        with connect(server, body):
            wait_until(lambda: llm.engine.num_running == seats)
            with connect(server, {"prompt": "Two more", "n": 2, **LONG}):
                wait_until(lambda: llm.engine.num_waiting > 0)
                for stream in (False, True):
                    reply = http.post("/v1/completions", json={"prompt": "x", "stream": stream})
                    assert reply.status_code == 429
                    assert 1 <= int(reply.headers["retry-after"]) <= 60
                    assert reply.json()["error"]["type"] == "rate_limit_error"
                assert http.get("/ready").status_code == 503
                assert http.get("/health").status_code == 200
        server.settles()
        assert http.get("/ready").status_code == 200
        reply = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert reply.status_code == 200
        reply = http.post("/v1/completions", json={"prompt": "x", "n": seats + 3})
        assert reply.status_code == 400


def test_one_prompt_of_many_that_is_wrong_ends_all(alone: Running) -> None:
    with alone.http() as http:
        for stream in (False, True):
            body = {"prompt": [[1, 2, 3], [10**6]], "stream": stream, **LONG}
            reply = http.post("/v1/completions", json=body)
            assert reply.status_code == 400, reply.text
            assert isinstance(reply, httpx.Response)
        alone.settles()
