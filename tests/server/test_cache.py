"""Looking at the cache, asking it, filling and emptying it; and what every reply tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import Running, running

HEADER = "x-kvreuse-cache"
SHORT = {"temperature": 0, "max_tokens": 2, "ignore_eos": True}


@pytest.fixture
def fresh(http: httpx.Client, server: Running) -> Iterator[httpx.Client]:
    """A client of a server whose cache is empty."""
    server.settles()
    assert http.post("/reset_prefix_cache?pinned=true").json()["kept_pages"] == 0
    yield http


def complete(http: httpx.Client, prompt: list[int], **options: object) -> httpx.Response:
    """The reply to a prompt of token ids."""
    reply = http.post("/v1/completions", json={"prompt": prompt, **SHORT, **options})
    assert reply.status_code == 200, reply.text
    return reply


def prompt_of(first: int, length: int = 100) -> list[int]:
    """Token ids."""
    return list(range(first, first + length))


def test_what_a_reply_tells(fresh: httpx.Client) -> None:
    cold = complete(fresh, prompt_of(1000))
    assert cold.headers[HEADER] == "cached=0, prompt=100, reason=cold, index=0"
    usage = cold.json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["kvreuse"]["reason"] == "cold"
    warm = complete(fresh, prompt_of(1000))
    assert warm.headers[HEADER] == "cached=99, prompt=100"
    assert warm.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 99}
    assert warm.json()["usage"]["kvreuse"]["reason"] is None
    parted = complete(fresh, prompt_of(1000, 70) + prompt_of(3000, 30))
    assert parted.headers[HEADER] == "cached=70, prompt=100, reason=diverged, index=70"
    assert parted.json()["choices"] != warm.json()["choices"]


def test_a_stream_tells_it_before_its_first_event(fresh: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": prompt_of(1000)}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "The sea " * 20}]}),
    ):
        for cached in (False, True):
            with fresh.stream("POST", path, json={**body, **SHORT, "stream": True}) as reply:
                assert ("reason=" not in reply.headers[HEADER]) == cached
                reply.read()
            assert reply.text.endswith("data: [DONE]\n\n")


def test_several_prompts(fresh: httpx.Client) -> None:
    complete(fresh, prompt_of(1000))
    reply = fresh.post(
        "/v1/completions", json={"prompt": [prompt_of(1000), prompt_of(2000, 50)], **SHORT}
    )
    told = reply.json()["usage"]["kvreuse"]
    assert (told["prompt_tokens"], told["cached_tokens"], told["computed_tokens"]) == (150, 99, 51)
    assert [one["cached_tokens"] for one in told["prompts"]] == [99, 0]
    assert told["prompts"][0]["reason"] is None
    assert told["prompts"][1]["reason"] is not None


def test_tenants_learn_nothing_of_each_other(fresh: httpx.Client) -> None:
    prompt = prompt_of(7000)
    complete(fresh, prompt, cache_salt="one")
    for salt in ({"cache_salt": "two"}, {}):
        asked = fresh.post("/v1/cache/lookup", json={"prompt": prompt, **salt})
        assert asked.json()["reason"] == "cold"
        reply = complete(fresh, prompt, **salt)
        assert reply.headers[HEADER] == "cached=0, prompt=100, reason=cold, index=0"
        assert reply.json()["usage"]["kvreuse"]["reason"] == "cold"
    misses = fresh.get("/v1/cache").json()["misses"]
    assert misses["namespace"]["requests"] >= 2
    reply = complete(fresh, prompt, cache_salt="one")
    assert reply.headers[HEADER].startswith("cached=99,")


def test_lookup_computes_nothing(fresh: httpx.Client, llm: LLM) -> None:
    complete(fresh, prompt_of(1000))
    computed = llm.engine.counters.computed_tokens
    for _ in range(2):
        reply = fresh.post(
            "/v1/cache/lookup", json={"prompt": prompt_of(1000, 120), "max_tokens": 41}
        ).json()
        assert reply["cached_tokens"] == 100
        assert reply["reason"] == "diverged"  # from the answer
        assert reply["needed_pages"] == 6  # 5, and one that rows are copied from
        assert reply["fits"] is True
    chat = fresh.post("/v1/cache/lookup", json={"messages": [{"role": "user", "content": "x"}]})
    assert chat.json()["cached_tokens"] == 0
    assert llm.engine.counters.computed_tokens == computed
    both = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    assert fresh.post("/v1/cache/lookup", json=both).status_code == 400
    assert fresh.post("/v1/cache/lookup", json={"prompt": prompt_of(0, 1024)}).status_code == 400


def test_prefill(fresh: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    reply = fresh.post("/v1/cache/prefill", json={"messages": messages})
    usage = reply.json()["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"]
    asked = fresh.post("/v1/chat/completions", json={"messages": messages, **SHORT})
    assert asked.headers[HEADER].startswith(f"cached={usage['prompt_tokens'] - 1},")


def test_what_the_cache_shows(fresh: httpx.Client) -> None:
    for tail in range(3):
        complete(fresh, prompt_of(1000, 64) + prompt_of(2000 + 100 * tail, 40))
    complete(fresh, prompt_of(5000, 40))
    cache = fresh.get("/v1/cache").json()
    pool = cache["pool"]
    assert pool["free_pages"] + pool["used_pages"] + pool["cached_pages"] == pool["total_pages"]
    assert pool["used_pages"] == 0
    largest, *_ = cache["prefixes"]
    assert (largest["tokens"], largest["pages"], largest["continuations"]) == (64, 8, 3)
    assert largest["hits"] == 2
    assert not largest["in_use"]
    assert not largest["pinned"]
    assert {one["text"] for one in cache["prefixes"]} == {None}
    dropped = fresh.post("/reset_prefix_cache").json()
    assert dropped["dropped_pages"] == pool["cached_pages"]
    assert fresh.get("/v1/cache").json()["prefixes"] == []


def test_what_is_in_use_stays(fresh: httpx.Client, llm: LLM) -> None:
    body = {"prompt": prompt_of(1000), **SHORT, "max_tokens": 800, "stream": True}
    with fresh.stream("POST", "/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        kept = fresh.post("/reset_prefix_cache").json()
        assert kept["kept_pages"] >= 4
        assert kept["pinned_pages"] == 0
        [prefix] = fresh.get("/v1/cache").json()["prefixes"]
        assert prefix["in_use"]
        llm.engine.check()


def test_pins(fresh: httpx.Client) -> None:
    full = complete(fresh, prompt_of(1000), kvreuse={"pin": True})
    assert full.headers[HEADER].startswith("cached=0,")
    kept = fresh.post("/reset_prefix_cache").json()
    assert (kept["kept_pages"], kept["pinned_pages"]) == (3, 3)
    [prefix] = fresh.get("/v1/cache").json()["prefixes"]
    assert prefix["pinned"]
    assert not prefix["in_use"]
    assert complete(fresh, prompt_of(1000)).headers[HEADER].startswith("cached=96,")
    assert fresh.post("/reset_prefix_cache?pinned=perhaps").status_code == 400
    dropped = fresh.post("/reset_prefix_cache?pinned=true").json()
    assert (dropped["kept_pages"], dropped["pinned_pages"]) == (0, 0)


def test_pins_beyond_what_there_is(fresh: httpx.Client, llm: LLM) -> None:
    for number in range(10):
        body = {"prompt": prompt_of(1000 * number, 1000), "pin": True, "ttl": 60}
        reply = fresh.post("/v1/cache/prefill", json=body)
        if reply.status_code == 400:
            break
    message = reply.json()["error"]["message"]
    assert "pages" in message
    assert fresh.get("/v1/cache").json()["pool"]["pinned_pages"] <= llm.pool.num_pages // 2
    assert fresh.post("/reset_prefix_cache?pinned=true").json()["pinned_pages"] == 0


def test_a_session_that_ends(fresh: httpx.Client) -> None:
    body = {"prompt": prompt_of(1000), "pin": True}
    assert fresh.post("/v1/cache/prefill", json=body).status_code == 200
    messages = [{"role": "user", "content": "The end."}]
    ending = {"session_end": True, "priority": 3}
    reply = fresh.post(
        "/v1/chat/completions", json={"messages": messages, **SHORT, "kvreuse": ending}
    )
    assert reply.status_code == 200
    complete(fresh, prompt_of(1000), kvreuse={"session_end": True})
    assert fresh.get("/v1/cache").json()["pool"]["pinned_pages"] == 0


def test_text_only_where_it_is_asked_for(spare: LLM, tmp_path: Path) -> None:
    config = ServerConfig(request_log=str(tmp_path / "log"), log_prompts=True)
    with running(spare, config) as server, server.http() as http:
        http.post("/reset_prefix_cache")
        http.post("/v1/completions", json={"prompt": "The sea is wide and deep", **SHORT})
        assert http.get("/v1/cache").json()["prefixes"][0]["text"].startswith("The sea is wide")


def test_a_conversation_goes_on_from_its_own_tokens(fresh: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Tell me a story about the sea."}]
    for stream in (False, True):
        body = {"temperature": 1, "seed": 3, "max_tokens": 40, "ignore_eos": True}
        first = fresh.post("/v1/chat/completions", json={**body, "messages": messages}).json()
        answer = first["choices"][0]["message"]["content"]
        turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        messages = [*messages, *turns]
        reply = fresh.post(
            "/v1/chat/completions", json={**body, "messages": messages, "stream": stream}
        )
        cached = int(reply.headers[HEADER].split("=")[1].split(",")[0])
        assert cached >= first["usage"]["total_tokens"] - 1
