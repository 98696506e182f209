"""The body of a request: read up to a limit, and validated."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from kvreuse.server.disconnect import ClientGoneError
from kvreuse.server.errors import APIError, invalid
from kvreuse.server.schema.fields import ModelBody
from kvreuse.server.service import Service

B = TypeVar("B", bound=ModelBody)


async def read(request: Request, limit: int) -> bytes:
    """The bytes, at most ``limit``. APIError for more, and where the headers say it is not JSON;
    ClientGoneError where the client disconnects before the end."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "the body must be JSON: send it with Content-Type: application/json"
        raise APIError(415, message, code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise APIError(415, "the body must not be compressed", code="unsupported_media_type")
    size = request.headers.get("content-length", "")
    if size.isdecimal() and len(size) < 20 and int(size) > limit:
        raise too_large(limit)
    parts, total = [], 0
    try:
        async for part in request.stream():
            total += len(part)
            if total > limit:
                raise too_large(limit)
            parts.append(part)
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(parts)


async def receive(request: Request, service: Service, model: type[B]) -> tuple[B, int]:
    """The body as one of ``model``, and its size in bytes.

    APIError where it is too large or not one, or names another model than the one served.
    """
    raw = await read(request, service.config.max_body_bytes)
    asked = await service.prepare(len(raw), lambda: parse(model, raw))
    service.check_model(asked.model)
    return asked, len(raw)


def parse(model: type[B], body: bytes) -> B:
    """The body as one of ``model``. APIError with the first thing that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None


def too_large(limit: int) -> APIError:
    """The error for a body with more than ``limit`` bytes."""
    message = f"the body has more than the {limit} bytes that this server takes (--max-body-size)"
    return APIError(413, message, code="body_too_large", headers={"connection": "close"})
