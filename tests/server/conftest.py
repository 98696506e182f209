"""The real model behind a real server, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from kvreuse.llm import LLM

from .running import Running, running


@pytest.fixture(scope="session")
def llm(model_path: Path) -> Iterator[LLM]:
    """The model; one engine for all servers of these tests, one after the other."""
    with LLM(model_path, kv_cache_memory="192MiB", max_model_len=1024, max_num_seqs=16) as llm:
        yield llm


@pytest.fixture(scope="session")
def spare(model_path: Path) -> Iterator[LLM]:
    """Another engine, for tests that start a server beside that of the module."""
    with LLM(model_path, kv_cache_memory="64MiB", max_model_len=1024, max_num_seqs=16) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    """A server with nothing set."""
    with running(llm) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    """OpenAI's client, unmodified."""
    with server.openai() as client:
        yield client


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    """A plain client."""
    with server.http() as http:
        yield http
