"""Metrics and the request log: what they count is what happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvreuse.api.miss import Reason
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig

from .running import NAME, Running, running

BODY = {"prompt": list(range(11000, 11050)), "temperature": 0, "max_tokens": 4, "ignore_eos": True}


def samples(http: httpx.Client) -> dict[str, float]:
    """All samples, as Prometheus's own parser reads them: name and labels to value."""
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_metrics(llm: LLM) -> None:
    with running(llm) as server, server.http() as http:
        http.post("/reset_prefix_cache")
        before, read = samples(http), llm.runner.page_bytes_read
        for stream in (False, True):
            http.post("/v1/completions", json={**BODY, "n": 2, "stream": stream})
        after = samples(http)
        read = llm.runner.page_bytes_read - read
        gained = {name: value - before.get(name, 0) for name, value in after.items()}
    assert gained["kvreuse:prompt_tokens_total"] == 100
    assert gained["kvreuse:prefix_cache_queries_total"] == 100
    assert gained["kvreuse:prefix_cache_hits_total"] == 49
    assert gained["kvreuse:generation_tokens_total"] == 16
    assert gained["kvreuse:request_success_total/length"] == 4
    assert gained["kvreuse:time_to_first_token_seconds_count"] == 2
    assert gained["kvreuse:e2e_request_latency_seconds_count"] == 2
    assert gained["kvreuse:request_queue_time_seconds_count"] == 2
    assert gained["kvreuse:inter_token_latency_seconds_count"] == 12
    for name, value in (("misses", 1), ("missed_tokens", 49)):
        by_reason = [f"kvreuse:prefix_cache_{name}_total/{reason.value}" for reason in Reason]
        assert sum(gained[one] for one in by_reason) == value
    assert gained["kvreuse:page_bytes_read_total"] == read > 0
    assert after["kvreuse:num_requests_running"] == 0
    assert after["kvreuse:num_requests_waiting"] == 0
    assert after["kvreuse:kv_cache_usage_perc"] == 0
    [info] = [name for name in after if name.startswith("kvreuse:cache_config_info")]
    assert NAME in info


def test_the_log(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("{}\n")
    with running(llm, ServerConfig(request_log=str(path))) as server:
        lines = asked(server, path)
    assert len(lines) == 3
    first, second, third = lines
    assert first["prompt_tokens"] == second["prompt_tokens"] == 50
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 49)
    assert first["miss"]["reason"] == "namespace"  # the operator may know
    assert second["miss"] is None
    assert first["route"] == "/v1/completions"
    assert first["generated_tokens"] == 4
    assert first["finish_reasons"] == ["length"]
    assert first["prompt_cache_key"] == "session"
    assert first["cache_salt"] == second["cache_salt"] is not None
    assert third["cache_salt"] is None
    assert first["seconds"]["total"] >= first["seconds"]["first_token"] > 0
    assert third["route"] == "/v1/chat/completions"
    everything = path.read_text()
    for secret in ("prompt_token_ids", '"prompt":', "tenant", "The sea"):
        assert secret not in everything


def test_the_log_with_text(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    config = ServerConfig(request_log=str(path), log_prompts=True)
    with running(llm, config) as server:
        *_, last = asked(server, path)
    assert "The sea" in last["prompt"]
    assert len(last["prompt_token_ids"]) == last["prompt_tokens"]
    assert len(last["answers"]) == 1
    assert "tenant" not in path.read_text()


def asked(server: Running, path: Path) -> list[dict[str, Any]]:
    """The lines that three requests leave."""
    already = len(path.read_text().splitlines()) if path.exists() else 0
    with server.http() as http:
        http.post("/reset_prefix_cache")
        http.post("/v1/completions", json={**BODY, "max_tokens": 1})
        body = {**BODY, "cache_salt": "tenant", "prompt_cache_key": "session"}
        for _ in range(2):
            http.post("/v1/completions", json=body)
        messages = [{"role": "user", "content": "The sea"}]
        body = {"messages": messages, "max_tokens": 3, "stream": True}
        http.post("/v1/chat/completions", json=body)
    return [json.loads(line) for line in path.read_text().splitlines()[already + 1 :]]
