"""From start to end: signals, what is under way then, and a server that stands still."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvreuse.engine.threaded import AsyncEngine
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import Running, running, wait_until

LONG = {"prompt": "The sea", "ignore_eos": True, "max_tokens": 1000, "temperature": 0}


@contextmanager
def process(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``kvreuse serve`` in a process of its own, and its address."""
    command = [sys.executable, "-m", "kvreuse", "serve", str(model), "--port", "0"]
    command += ["--kv-cache-memory", "64MiB", "--max-model-len", "1024", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line + server.stderr.read()
            yield server, found.group()
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_signals_end_it_in_order(model_path: Path, number: int, status: int) -> None:
    with process(model_path) as (server, url):
        name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        assert name == model_path.stem
        body = {**LONG, "max_tokens": 60}
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.send_signal(number)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) == 60
        assert server.wait(30) == status


def test_what_does_not_finish_in_time_is_cut(model_path: Path) -> None:
    with process(model_path, "--shutdown-timeout", "0.2") as (server, url):
        replies: list[httpx.Response] = []

        def ask() -> None:
            replies.append(httpx.post(f"{url}/v1/completions", json=LONG, timeout=30))

        asking = threading.Thread(target=ask)
        asking.start()
        body = {**LONG, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
        asking.join()
        assert replies[0].status_code == 503
        assert replies[0].json()["error"]["code"] == "shutting_down"
        assert server.wait(30) == 0


def test_a_port_that_is_taken(model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "kvreuse", "serve", str(model_path), "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"error: 127.0.0.1:{port}: Address already in use\n"


def test_replies_do_not_wait_for_acknowledgements(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[asyncio.Transport] = []
    made = H11Protocol.connection_made

    def connection_made(self: H11Protocol, transport: asyncio.Transport) -> None:
        transports.append(transport)
        made(self, transport)

    monkeypatch.setattr(H11Protocol, "connection_made", connection_made)
    with running(llm) as server, server.http() as http:
        http.get("/version")
        connection = transports[0].get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_while_it_ends_nothing_new_is_taken(llm: LLM) -> None:
    with running(llm) as server, server.http() as http:
        server.app.state.service.seats.closed = True
        reply = http.post("/v1/completions", json=LONG)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "shutting_down"
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200


def last_error(lines: Iterator[str]) -> object:
    """The code of the error that a stream ends with."""
    *_, last = [line for line in lines if line]
    return json.loads(last.removeprefix("data: "))["error"]["code"]


def test_a_second_interrupt_ends_streams_with_an_error(llm: LLM) -> None:
    replies: list[httpx.Response] = []
    with running(llm) as server, server.http() as http, server.http() as other:
        asking = threading.Thread(
            target=lambda: replies.append(other.post("/v1/completions", json=LONG))
        )
        asking.start()
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            wait_until(lambda: llm.engine.num_running == 2)
            server.server.should_exit = server.server.force_exit = True
            assert last_error(lines) == "shutting_down"
        asking.join()
    assert replies[0].status_code == 503
    assert replies[0].json()["error"]["code"] == "shutting_down"
    assert not llm.engine.has_unfinished


def test_what_does_not_finish_in_time_is_aborted_at_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[tuple[str, ...]] = []
    abort = AsyncEngine.abort

    async def watched(self: AsyncEngine, *request_ids: str) -> None:
        orders.append(request_ids)
        await abort(self, *request_ids)

    monkeypatch.setattr(AsyncEngine, "abort", watched)
    replies: list[httpx.Response] = []
    with running(llm, ServerConfig(shutdown_timeout=0)) as server, server.http() as http:
        body = {**LONG, "prompt": ["One", "Two", "Three", "Four", "Five"]}
        asking = threading.Thread(
            target=lambda: replies.append(http.post("/v1/completions", json=body))
        )
        asking.start()
        wait_until(lambda: llm.engine.num_running == 5)
        server.server.should_exit = True
        asking.join()
    assert replies[0].json()["error"]["code"] == "shutting_down"
    assert [len(one) for one in orders] == [5]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_is_not_the_clients_fault(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = llm.engine.counters.steps
    step = llm.engine.step

    def die(*arguments: object) -> object:
        if llm.engine.counters.steps >= steps + 3:
            raise SystemExit
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.engine, "step", die)
    with running(llm) as server, server.http() as http:
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
            assert reply.status_code == 200
            assert last_error(reply.iter_lines()) == "engine_closed"
        for path, body in (
            ("/v1/completions", LONG),
            ("/v1/completions", {**LONG, "stream": True}),
            ("/v1/cache/lookup", {"prompt": "The sea"}),
            ("/v1/cache/prefill", {"prompt": "The sea"}),
            ("/reset_prefix_cache", {}),
        ):
            refused = http.post(path, json=body)
            assert refused.status_code == 503, path
            assert refused.json()["error"]["code"] == "engine_closed"
            assert refused.headers["retry-after"] == "5"
        for path in ("/v1/cache", "/health", "/ready"):
            assert http.get(path).status_code == 503


def test_a_step_that_hangs_is_seen(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, inside = threading.Event(), threading.Event()
    step = llm.engine.step

    def hang(*arguments: object) -> object:
        inside.set()
        go_on.wait(30)
        return step(*arguments)  # type: ignore[arg-type]

    config = ServerConfig(stall_timeout=0.05)
    with running(llm, config) as server, server.http() as http:
        monkeypatch.setattr(llm.engine, "step", hang)
        body = {**LONG, "max_tokens": 3}
        asking = threading.Thread(target=lambda: http.post("/v1/completions", json=body))
        asking.start()
        inside.wait(30)
        with server.http() as other:
            wait_until(lambda: other.get("/health").status_code == 503)
            state = other.get("/health").json()
            assert state["status"] == "no step for too long"
            assert state["stalled_seconds"] > 0.05
            go_on.set()
            asking.join()
            assert other.get("/health").status_code == 200


def test_a_failure_inside_is_nobody_elses(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advance = llm.engine._advance

    def fail(request: object, *rest: object) -> object:
        if request.ask.text == "bad":  # type: ignore[attr-defined]
            raise ZeroDivisionError("of no use to a client")
        return advance(request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.engine, "_advance", fail)
    with running(llm) as server, server.http() as http:
        body = {"prompt": "good", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
        good = http.post("/v1/completions", json=body).json()["choices"]
        with server.http() as other:
            replies: list[httpx.Response] = []
            asking = threading.Thread(
                target=lambda: replies.append(other.post("/v1/completions", json=body))
            )
            asking.start()
            for stream in (False, True):
                bad = http.post("/v1/completions", json={**body, "prompt": "bad", "stream": stream})
                assert bad.status_code == 500
                assert "of no use" not in bad.text
            asking.join()
        assert replies[0].json()["choices"] == good
        server.settles()
    assert "of no use" in caplog.text


def test_it_starts_again(llm: LLM) -> None:
    texts = set()
    for _ in range(2):
        with running(llm) as server, server.http() as http:
            assert isinstance(server, Running)
            reply = http.post("/v1/completions", json={**LONG, "max_tokens": 5}).json()
            texts.add(reply["choices"][0]["text"])
    assert len(texts) == 1
