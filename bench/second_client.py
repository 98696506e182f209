"""LangChain's OpenAI class against a server: another client than the one of the tests.

    python bench/second_client.py URL          (needs: pip install langchain-openai)

Start a server first: kvreuse serve smollm2-135m. Fails at the first thing that is not as
LangChain's users expect it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import httpx


def check(url: str) -> None:
    """Chats, streams, batches, forms and tools; AssertionError where one is not right."""
    from langchain_openai import ChatOpenAI, OpenAI  # noqa: PLC0415

    model = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
    options: dict[str, Any] = {
        "base_url": f"{url}/v1",
        "api_key": "none",
        "model": model,
        "temperature": 0,
        "max_tokens": 24,
    }
    chat = ChatOpenAI(**options, stream_usage=True)
    answer = chat.invoke("Tell me about the sea.")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 24
    assert answer.response_metadata["finish_reason"] in ("stop", "length")

    chunks = list(chat.stream("Tell me about the sea."))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    cached = usage["input_token_details"]["cache_read"]
    assert cached == usage["input_tokens"] - 1, usage

    answers = asyncio.run(chat.abatch([f"Say {number}." for number in range(8)]))
    assert len(answers) == 8

    logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke("Hello").response_metadata
    assert len(logprobs["logprobs"]["content"][0]["top_logprobs"]) == 2

    schema = {
        "title": "Mood",
        "type": "object",
        "properties": {"mood": {"type": "string", "enum": ["glad", "sad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    for method in ("json_schema", "function_calling"):
        roomy = ChatOpenAI(**options | {"max_tokens": 100})
        formed = roomy.with_structured_output(schema, method=method).invoke("How are you?")
        assert formed in ({"mood": "glad"}, {"mood": "sad"}), (method, formed)

    assert OpenAI(**options).invoke("Once upon a time")


def main() -> int:
    """Check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    check(parser.parse_args().url.rstrip("/"))
    print("LangChain is served as it expects")
    return 0


if __name__ == "__main__":
    sys.exit(main())
