"""The OpenAPI document, and 500 requests that it makes schemathesis think of: never a 5xx."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig
from kvreuse.server.endpoints import ENDPOINTS

from .running import Running, running

CASES = int(os.environ.get("KVREUSE_SCHEMA_CASES", "500"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def small(model_path: Any) -> Iterator[Running]:
    """A server whose answers are short, whatever is asked for."""
    with (
        LLM(model_path, kv_cache_memory="64MiB", max_model_len=48, max_num_seqs=128) as llm,
        running(llm, ServerConfig(max_queue=1000)) as server,
    ):
        yield server


def test_the_document(small: Running) -> None:
    with small.http() as http:
        document = http.get("/openapi.json").json()
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS}
    body = document["components"]["schemas"]["ChatRequest"]
    assert body["additionalProperties"] is False
    assert body["required"] == ["messages"]
    assert body["properties"]["temperature"]["anyOf"][0]["minimum"] == 0


def test_no_case_is_the_servers_fault(small: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    operations: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    taking = [one for one in operations if one.body]
    others = [one for one in operations if not one.body]
    statuses: list[int] = []
    for operation in others:
        _try(operation, 2, 0, small, statuses)
    seed, each = 0, -(-CASES // len(taking))
    while len(statuses) < CASES:  # hypothesis may think of fewer than it is asked for
        for operation in taking:
            _try(operation, each, seed, small, statuses)
        seed += 1
    assert statuses.count(200) >= len(statuses) / 10
    small.settles()


def _try(operation: Any, count: int, seed: int, server: Running, statuses: list[int]) -> None:
    """``count`` cases of one operation, of right and wrong bodies."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        case=hypothesis.strategies.one_of(
            operation.as_strategy(schemathesis.GenerationMode.POSITIVE),
            operation.as_strategy(schemathesis.GenerationMode.NEGATIVE),
        )
    )
    def attempt(case: Any) -> None:
        reply = case.call(base_url=server.url, timeout=300)  # as slow as the machine is
        statuses.append(reply.status_code)
        case.validate_response(reply, checks=CHECKS)

    attempt()
