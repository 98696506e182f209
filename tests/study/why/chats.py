"""Chats for the tests of why: a harbour office, its tools and its visitors."""

from __future__ import annotations

from typing import Any

RULES = (
    "You are the assistant of the harbour office. You answer questions about ships, tides and "
    "berths, politely and in one sentence. Never speak about prices."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks up {name}",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
    for name in ("tides", "ships", "berths")
]
QUESTION = "Which ships are in?"


def chat(system: str, *turns: str, **fields: Any) -> dict[str, Any]:
    """A request: the system's text, then turns of user and assistant."""
    messages = [{"role": "system", "content": system}]
    for place, turn in enumerate(turns):
        messages.append({"role": "assistant" if place % 2 else "user", "content": turn})
    return {"model": "any", "messages": messages, **fields}
