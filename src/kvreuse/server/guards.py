"""Checks of every request before its route: the Host header and the API key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kvreuse.server.config import LOOPBACK, ServerConfig
from kvreuse.server.errors import APIError, respond

OPEN = frozenset({"/", "/health", "/ready", "/version"})
"""Paths that need no key: they reveal nothing about requests."""


class Guard:
    """Refuses wrong keys, and on a loopback address other host names than this machine's.

    A key is compared by its digest, with all keys, in a time that does not depend on them.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: Sequence[str]) -> None:
        """No ``keys``: none is needed."""
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        trusting = config.loopback and not keys and "*" not in config.allow_host
        self._hosts = LOOPBACK | set(config.allow_host) if trusting else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                self._check_host(headers)
                if self._digests and scope["path"] not in OPEN:
                    self._check_key(headers)
            except APIError as error:
                await respond(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "localhost")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self._hosts is not None and name.strip("[]").lower() not in self._hosts:
            message = f"this server is not to be asked as {host}: see --allow-host"
            raise APIError(403, message, code="unknown_host")

    def _check_key(self, headers: Headers) -> None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip().encode("latin-1", "replace"))
        # Compare with all keys, so that the time reveals nothing.
        matches = sum([hmac.compare_digest(digest, known) for known in self._digests])
        if scheme.lower() != "bearer" or not matches:
            raise APIError(
                401,
                "the API key is missing or wrong: send Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
