"""Keys, hosts and origins."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from kvreuse.errors import ConfigError
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import NAME, running


def test_keys(llm: LLM, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n  zwei-\u00e4\n", encoding="utf-8")
    config = ServerConfig(api_key=["three"], api_key_file=str(keys))
    with running(llm, config) as server, server.http() as http:
        for path in ("/", "/health", "/ready", "/version"):
            assert http.get(path).status_code == 200
        for path in ("/v1/models", "/v1/cache", "/metrics", "/openapi.json", "/nowhere"):
            assert http.get(path).status_code == 401
            for key in ("one", "three"):
                reply = http.get(path, headers={"authorization": f"bearer {key}"})
                assert reply.status_code == (404 if path == "/nowhere" else 200)
        header = "Bearer zwei-\u00e4".encode()
        assert http.get("/v1/models", headers={b"authorization": header}).status_code == 200
        for wrong in ("Bearer", "Bearer on", "Basic one", "one", "Bearer one two"):
            reply = http.get("/v1/models", headers={"authorization": wrong})
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
            assert reply.headers["www-authenticate"] == "Bearer"
        described = http.get("/openapi.json", headers={"authorization": "Bearer one"}).json()
        assert described["security"] == [{"key": []}]
        with server.openai("one") as client:
            assert client.models.list().data[0].id == NAME
        with server.openai("four") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_other_names_of_this_machine_are_refused(llm: LLM) -> None:
    with running(llm, ServerConfig(allow_host=["box.example"])) as server, server.http() as http:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000", "box.example:8"):
            assert http.get("/version", headers={"host": host}).status_code == 200
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"):
            reply = http.get("/version", headers={"host": host})
            assert reply.status_code == 403
            assert "--allow-host" in reply.json()["error"]["message"]
    with running(llm, ServerConfig(api_key=["key"])) as server, server.http() as http:
        assert http.get("/version", headers={"host": "box.example"}).status_code == 200


def test_origins(llm: LLM) -> None:
    asked = {"origin": "http://app.example", "access-control-request-method": "POST"}
    allowed = "access-control-allow-origin"
    with running(llm) as server, server.http() as http:
        assert allowed not in http.options("/v1/completions", headers=asked).headers
        assert allowed not in http.get("/version", headers=asked).headers
    config = ServerConfig(allow_origin=["http://app.example"], api_key=["key"])
    with running(llm, config) as server, server.http() as http:
        assert http.options("/v1/completions", headers=asked).headers[allowed] == asked["origin"]
        other = asked | {"origin": "http://other.example"}
        assert allowed not in http.options("/v1/completions", headers=other).headers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"port": 70000}, "--port"),
        ({"max_queue": -1}, "--max-queue"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"stall_timeout": float("nan")}, "--stall-timeout"),
        ({"max_body_size": "much"}, "--max-body-size"),
        ({"log_prompts": True}, "--request-log"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(**fields)  # type: ignore[arg-type]


def test_files_of_keys_that_cannot_be(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe")
    for path, words in ((empty, "holds no key"), (binary, "not UTF-8")):
        with pytest.raises(ConfigError, match=words):
            ServerConfig(api_key_file=str(path)).keys()
    with pytest.raises(OSError, match="No such file"):
        ServerConfig(api_key_file=str(tmp_path / "none")).keys()
    with pytest.raises(ConfigError, match="--api-key"):
        ServerConfig(api_key=[""]).keys()
