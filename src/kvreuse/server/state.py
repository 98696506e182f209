"""The server's models, health, version and metrics."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvreuse.server.schema.replies import ModelCard, ModelList, StateReply, VersionReply
from kvreuse.server.service import Service


async def models(request: Request) -> Response:
    """The names of the model."""
    service: Service = request.app.state.service
    listed: ModelList = {"object": "list", "data": [_card(service, n) for n in service.names]}
    return JSONResponse(listed)


async def model(request: Request) -> Response:
    """One of them."""
    service: Service = request.app.state.service
    name = request.path_params["model"]
    service.check_model(name)
    return JSONResponse(_card(service, name))


async def health(request: Request) -> Response:
    """Whether the engine's thread is alive and makes progress."""
    service: Service = request.app.state.service
    stalled = service.engine.stalled > service.config.stall_timeout
    dead = not service.engine.alive
    status = "the engine has ended" if dead else "no step for too long" if stalled else "ok"
    return JSONResponse(_state(service, status), 503 if dead or stalled else 200)


async def ready(request: Request) -> Response:
    """Whether the server takes requests now."""
    service: Service = request.app.state.service
    full = service.seats.taken >= service.seats.capacity
    closed = service.seats.closed or not service.engine.alive
    status = "shutting down" if closed else "the queue is full" if full else "ok"
    return JSONResponse(_state(service, status), 503 if closed or full else 200)


async def metrics(request: Request) -> Response:
    """All metrics, in Prometheus's text format."""
    service: Service = request.app.state.service
    return Response(
        generate_latest(service.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST}
    )


async def show_version(request: Request) -> Response:
    """The version."""
    reply: VersionReply = {"version": own_version()}
    return JSONResponse(reply)


def own_version() -> str:
    """The version that is installed; ``0`` where none is."""
    try:
        return version("kvreuse")
    except PackageNotFoundError:
        return "0"


def _card(service: Service, name: str) -> ModelCard:
    return {
        "id": name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "kvreuse",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.llm.engine.max_model_len,
    }


def _state(service: Service, status: str) -> StateReply:
    engine = service.llm.engine
    return {
        "status": status,
        "running": engine.num_running,
        "waiting": engine.num_waiting,
        "stalled_seconds": round(service.engine.stalled, 3),
    }
