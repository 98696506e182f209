"""The ASGI application over an LLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvreuse.errors import KVReuseError
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig
from kvreuse.server.disconnect import ClientGoneError
from kvreuse.server.endpoints import ENDPOINTS
from kvreuse.server.errors import on_error
from kvreuse.server.guards import Guard
from kvreuse.server.openapi import document
from kvreuse.server.service import Service


def create_app(llm: LLM, config: ServerConfig, names: Sequence[str]) -> Starlette:
    """The application; its lifespan starts and stops the engine's thread.

    ``names`` are those of the model. ConfigError, or OSError, for keys that cannot be read.
    """
    keys = config.keys()
    described = document(names, keyed=bool(keys))

    async def openapi(request: Request) -> Response:
        return JSONResponse(described)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with Service(llm, config, names) as service:
            app.state.service = service
            yield

    middleware = [Middleware(Guard, config=config, keys=keys)]
    if config.allow_origin:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.allow_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["x-kvreuse-cache"],
        )
        middleware.insert(0, cors)  # a preflight has no key
    routes = [
        Route(one.path.replace("{model}", "{model:path}"), one.handler, methods=[one.method])
        for one in ENDPOINTS
    ]
    return Starlette(
        routes=[*routes, Route("/openapi.json", openapi, methods=["GET"])],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: on_error,
            KVReuseError: on_error,
            ValidationError: on_error,
            ClientGoneError: _nobody,
            Exception: on_error,
        },
    )


async def _nobody(request: Request, error: Exception) -> Response:
    """The client has gone: nginx logs this as 499."""
    return Response(status_code=499)
