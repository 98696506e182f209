"""The routes: one table, from which the application and its OpenAPI document are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvreuse.server import cache, page, state, tokens
from kvreuse.server.answering import handler
from kvreuse.server.dialects.chat import ChatCompletions
from kvreuse.server.dialects.completions import Completions
from kvreuse.server.dialects.dialect import Dialect
from kvreuse.server.schema import cache as cache_schema
from kvreuse.server.schema import completions as completion_schema
from kvreuse.server.schema import replies


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A route, and the types of its body and its reply."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    reply: Any = None
    """None: text."""
    body: Any = None
    """None: it takes none."""
    name: str = ""
    """The id of the operation; empty: the handler's name."""
    event: Any = None
    """The events of its streams; None: it has no streams."""
    stream_type: str = ""
    """The media type of its streams."""
    failure: Any = replies.ErrorReply
    """Its errors."""

    @classmethod
    def of(cls, dialect: type[Dialect[Any]]) -> Endpoint:
        """The route of a dialect."""
        return cls(
            "POST",
            dialect.path,
            handler(dialect),
            dialect.summary,
            dialect.whole,
            dialect.body,
            dialect.name,
            dialect.event,
            dialect.framing.media_type,
            dialect.failure,
        )

    @property
    def operation(self) -> str:
        """The id of the operation."""
        return self.name or self.handler.__name__


DIALECTS: tuple[type[Dialect[Any]], ...] = (ChatCompletions, Completions)

ENDPOINTS = (
    *map(Endpoint.of, DIALECTS),
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
