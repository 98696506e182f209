"""The routes: one table, out of which come the application and its OpenAPI document."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvreuse.server import cache, chat, completions, page, state, tokens
from kvreuse.server.schema import cache as cache_schema
from kvreuse.server.schema import completions as completion_schema
from kvreuse.server.schema import replies
from kvreuse.server.schema.chat import ChatRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A route, the body that it takes and the reply that it gives; ``reply`` None is text."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    reply: Any = None
    body: Any = None
    event: Any = None
    """What a stream of it consists of."""


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.chat_completions,
        "Answer a conversation.",
        replies.ChatReply,
        ChatRequest,
        replies.ChatChunk,
    ),
    Endpoint(
        "POST",
        "/v1/completions",
        completions.completions,
        "Continue one prompt or many.",
        replies.CompletionReply,
        completion_schema.CompletionRequest,
        replies.CompletionReply,
    ),
    Endpoint("GET", "/v1/models", state.models, "The model's names.", replies.ModelList),
    Endpoint("GET", "/v1/models/{model}", state.model, "One of them.", replies.ModelCard),
    Endpoint(
        "POST",
        "/tokenize",
        tokens.tokenize,
        "The tokens of a text or a conversation.",
        replies.TokensReply,
        completion_schema.TokenizeRequest,
    ),
    Endpoint(
        "POST",
        "/detokenize",
        tokens.detokenize,
        "The text of tokens.",
        replies.TextReply,
        completion_schema.DetokenizeRequest,
    ),
    Endpoint(
        "POST",
        "/apply-template",
        tokens.apply_template,
        "The text that the chat template makes of a conversation.",
        replies.TextReply,
        completion_schema.TemplateRequest,
    ),
    Endpoint(
        "GET",
        "/v1/cache",
        cache.show_cache,
        "Pool, prefixes, hits and misses.",
        cache_schema.CacheReply,
    ),
    Endpoint(
        "POST",
        "/v1/cache/lookup",
        cache.lookup,
        "How much of a prompt is resident; computes nothing.",
        cache_schema.LookupReply,
        completion_schema.CachePrompt,
    ),
    Endpoint(
        "POST",
        "/v1/cache/prefill",
        cache.prefill,
        "Compute a prompt and keep it.",
        cache_schema.PrefillReply,
        completion_schema.PrefillRequest,
    ),
    Endpoint(
        "POST",
        "/reset_prefix_cache",
        cache.reset,
        "Drop every page that nobody uses.",
        cache_schema.ResetReply,
    ),
    Endpoint("GET", "/health", state.health, "Alive, and getting on.", replies.StateReply),
    Endpoint("GET", "/ready", state.ready, "Whether requests are taken.", replies.StateReply),
    Endpoint("GET", "/metrics", state.metrics, "Prometheus metrics."),
    Endpoint("GET", "/version", state.show_version, "The version.", replies.VersionReply),
    Endpoint("GET", "/", page.show, "A page that shows the pool."),
)
