"""Bodies that nobody should send: each is a 4xx with an error that a client can read."""

from __future__ import annotations

import json
import socket
import threading
from pydoc_data.topics import topics

import httpx
import pytest

from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import Running, running

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
PROMPT = '{"prompt": %s}'
USER = '{"messages": [{"role": "user", "content": %s}]}'


def refused(reply: httpx.Response, status: int, code: str | None = None) -> str:
    """The message of an error of OpenAI's form."""
    assert reply.status_code == status, reply.text[:500]
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert code in {None, error["code"]}
    assert 0 < len(error["message"]) <= 300
    assert "Traceback" not in error["message"]
    return str(error["message"])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "{}",
        "NaN",
        '{"messages": 1}',
        '{"messages": [null]}',
        USER % "5",
        USER % '"\\ud800"',
        USER % '"\\udc00\\ud800"',
        USER % ("[" * 100_000),
        USER % ("[" * 100 + "]" * 100),
        '{"messages": [{"role": "root", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": "x", "function_call": {}}]}',
        (USER % '"x"')[:-1] + ', "temperature": 1e999}',
        (USER % '"x"')[:-1] + ', "temperature": "hot"}',
        (USER % '"x"')[:-1] + ', "max_tokens": ' + "9" * 5000 + "}",
        (USER % '"x"')[:-1] + ', "max_tokens": 1.5}',
        (USER % '"x"')[:-1] + ', "n": true}',
        (USER % '"x"')[:-1] + ', "stop": ""}',
        (USER % '"x"')[:-1] + ', "stop": ["a", ""]}',
        (USER % '"x"')[:-1] + ', "seed": 1e3}',
        (USER % '"x"')[:-1] + ', "stream": "yes"}',
        (USER % '"x"')[:-1] + ', "tools": [{"type": "function"}]}',
        (USER % '"x"')[:-1] + ', "tool_choice": "required"}',
        (USER % '"x"')[:-1] + ', "min_tokens": 50, "max_tokens": 5}',
        (USER % '"x"')[:-1] + ', "kvreuse": {"ttl": -1}}',
        (USER % '"x"')[:-1] + ', "kvreuse": {"forever": true}}',
        (USER % '"x"')[:-1] + ', "cache_salt": ""}',
        (USER % '"x"')[:-1] + ', "modalities": ["audio"]}',
    ],
    ids=lambda body: body[:60],
)
def test_wrong_bodies(http: httpx.Client, body: str) -> None:
    refused(http.post(CHAT, content=body, headers=JSON), 400)


def test_a_template_s_variables_may_have_any_name(http: httpx.Client) -> None:
    """Also where the part is told in which two prompts part."""
    for name in ("text", "template", "prompt", "tokenizer", "options", "retention"):
        for word in ("one", "two"):
            content = f"{name}: tell me about the number {word} and about nothing else at all"
            messages = [{"role": "user", "content": content}]
            kwargs = {name: "x"}
            body = {"messages": messages, "max_tokens": 1, "chat_template_kwargs": kwargs}
            assert http.post(CHAT, json=body).status_code == 200
            assert (
                http.post("/v1/cache/prefill", json=body | {"max_tokens": None}).status_code < 500
            )


@pytest.mark.parametrize("path", ["/tokenize", "/v1/cache/lookup", "/v1/cache/prefill"])
def test_what_is_wrong_in_a_conversation_is_no_failure(
    http: httpx.Client, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.loads(USER % '"x"') | {"chat_template_kwargs": {"tools": "x"}}
    assert "must not have 'tools'" in refused(http.post(path, json=body), 400)
    assert not caplog.records


def test_a_client_that_leaves_in_the_middle_of_its_body(
    spare: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    with running(spare) as server, server.http() as http:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", http.base_url.port or 0)) as raw:
                head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                raw.sendall(f'{head}Content-Length: 5000\r\n\r\n{{"a": 1'.encode())
        assert http.get("/health").status_code == 200
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_bytes_that_are_no_text(http: httpx.Client) -> None:
    body = USER.encode() % b'"\xff\xfe"'
    refused(http.post(CHAT, content=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize("character", ["a", " ", "\U0001f600", "\\n"])
def test_texts_of_megabytes(spare: LLM, character: str) -> None:
    text = character * (5_000_000 // len(character))
    with running(spare, ServerConfig(max_body_size="64MiB")) as server, server.http() as http:
        for body in (USER % f'"{text}"', PROMPT % f'"{text}"'):
            path = CHAT if "messages" in body else "/v1/completions"
            reply = http.post(path, content=body.encode(), headers=JSON)
            message = refused(reply, 400, "context_length_exceeded")
            assert "1024 tokens" in message
        assert http.get("/health").status_code == 200


def test_a_long_text_holds_nobody_up(spare: LLM) -> None:
    text = "".join(topics.values()) * 4
    with running(spare, ServerConfig(max_body_size="64MiB")) as server:
        counts: list[int] = []

        def tokenise() -> None:
            with server.http() as http:
                counts.append(http.post("/tokenize", json={"content": text}).json()["count"])

        tokenising = threading.Thread(target=tokenise)
        tokenising.start()
        answers = 0
        with server.http() as http:
            while tokenising.is_alive():
                answers += http.get("/health").status_code == 200
        assert counts[0] > 300_000
        assert answers > 10


def test_limits_of_the_body(http: httpx.Client) -> None:
    body = (USER % f'"{"a" * 5_000_000}"').encode()
    refused(http.post(CHAT, content=body, headers=JSON), 413, "body_too_large")
    pieces = (b"x" * 100_000 for _ in range(100))
    refused(http.post(CHAT, content=pieces, headers=JSON), 413, "body_too_large")


def test_kinds_of_body(http: httpx.Client) -> None:
    body = USER % '"x"'
    for headers in ({"content-type": "text/plain"}, {}, JSON | {"content-encoding": "gzip"}):
        reply = http.post(CHAT, content=body, headers=headers)
        refused(reply, 415, "unsupported_media_type")


def test_paths_and_methods(http: httpx.Client) -> None:
    assert "/nowhere" in refused(http.get("/nowhere"), 404, "not_found")
    reply = http.get(CHAT)
    refused(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


def test_prompts(http: httpx.Client) -> None:
    for prompt, words in (
        ([], None),
        ([[]], None),
        ("", "empty"),
        (["x", ""], "empty"),
        ([1, "x"], None),
        ([[1], "x"], None),
        ([-1], None),
        ([10**9], "vocabulary"),
        ([[1, 2], [10**9]], "vocabulary"),
        (None, None),
        ({"text": "x"}, None),
    ):
        for more in ({}, {"stream": True}):
            reply = http.post("/v1/completions", json={"prompt": prompt, **more})
            message = refused(reply, 400)
            assert words is None or words in message
    reply = http.post("/v1/completions", json={"prompt": "x", "echo": True, "logprobs": 1})
    assert "echo" in refused(reply, 400)
    reply = http.post("/v1/completions", json={"prompt": "x", "suffix": "y"})
    assert "suffix" in refused(reply, 400, "unsupported_parameter")


def test_a_client_that_says_nothing_sensible(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    with server.http() as http:
        assert json.loads(http.get("/health").text)["status"] == "ok"
