"""Errors in OpenAI's form: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.errors import ContextLengthError, EngineClosedError, KVReuseError, RequestError

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
_SHOWN = 300  # characters of a message


class APIError(KVReuseError):
    """A reply that is an error, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``code`` is for programs, ``param`` names the field that is wrong."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The JSON."""
        return error_body(self.status, str(self), code=self.code, param=self.param)


def shutting_down() -> APIError:
    """The refusal of a server that shuts down."""
    return APIError(
        503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"}
    )


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The JSON of an error."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": shown(message),
            "type": kind,
            "param": param,
            "code": code if code is not None else kind,
        }
    }


def shown(text: str) -> str:
    """``text`` within one line, valid Unicode, and not too long."""
    line = " ".join(text.encode(errors="replace").decode().split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def as_api_error(error: BaseException) -> APIError:
    """``error``, whatever raised it, as a client sees it."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, ContextLengthError):
        message = f"This model's maximum context length is {error.limit} tokens: {error}"
        return APIError(400, message, code="context_length_exceeded")
    if isinstance(error, EngineClosedError):
        message = "the engine has ended: try another server, or this one once it was started again"
        return APIError(503, message, code="engine_closed", headers={"retry-after": "5"})
    if isinstance(error, RequestError):
        return APIError(400, str(error), code="invalid_value")
    return APIError(500, "the request failed inside the server: its log says why", code="internal")


def invalid(error: ValidationError) -> APIError:
    """The most important error of a body."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(found, key=lambda one: _WEIGHTS.get(one["type"], 0))
    kind, where = first["type"], _place(first["loc"])
    if kind == "json_invalid":
        message = first["msg"].removeprefix("Invalid JSON: ")
        return APIError(400, f"the body is not valid JSON: {message}", code="invalid_json")
    if kind in {"extra_forbidden", "none_required"}:
        message = f"unsupported parameter: {where}"
        return APIError(400, message, code="unsupported_parameter", param=where)
    if kind == "missing":
        message = f"missing required parameter: {where}"
        return APIError(400, message, code="missing_required_parameter", param=where)
    message = first["msg"].removeprefix("Value error, ")
    prefix = f"{where}: " if where else ""
    return APIError(400, f"{prefix}{message}", code="invalid_value", param=where or None)


_WEIGHTS = {"json_invalid": 4, "extra_forbidden": 3, "literal_error": 2, "missing": 1}
"""Of several errors the one with most weight is reported."""


def _place(loc: Sequence[int | str]) -> str:
    """``messages[0].content`` for a place in a body, without the branches of unions."""
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.replace("_", "").isalnum() and not part[0].isupper() and part not in _BRANCHES:
            place += f".{part}" if place else part
    return shown(place)


_BRANCHES = frozenset({"str", "int", "float", "bool", "constrained-str"})


def respond(error: APIError) -> JSONResponse:
    """The reply for an error."""
    return JSONResponse(error.body(), error.status, error.headers)


async def on_error(request: Request, error: Exception) -> Response:
    """The reply to an exception of a route."""
    if isinstance(error, HTTPException):
        words = {404: f"there is nothing at {request.url.path}", 405: "this method is not allowed"}
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = words.get(error.status_code, error.detail)
        return respond(APIError(error.status_code, message, code=code, headers=error.headers))
    if isinstance(error, ValidationError):
        return respond(invalid(error))
    return respond(as_api_error(error))
