"""Listening on a port, serving, and shutting down in order."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from kvreuse.server.config import ServerConfig
from kvreuse.server.service import Service

_GRACE = 5.0
"""Seconds beyond --shutdown-timeout that connections get to close."""
_LAST_WORDS = 2.0
"""Seconds that replies get after a second Ctrl-C, to send the error that they end with."""


class Server(uvicorn.Server):
    """uvicorn's server, which lets answers finish before it closes."""

    def __init__(
        self, app: Starlette, config: ServerConfig, *, on_listening: Callable[[int], None]
    ) -> None:
        """``on_listening`` is called with the port once the server listens."""
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_keep_alive=75,  # longer than clients keep a connection that rests
                timeout_graceful_shutdown=int(config.shutdown_timeout + _GRACE) + 1,
            )
        )
        self._app = app
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.started:
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening; answers under way finish within --shutdown-timeout, or are aborted."""
        service: Service = self._app.state.service
        draining = asyncio.create_task(service.drain())
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl-C: the engine's thread must still be ended
            await self.lifespan.shutdown()
            if tasks := self.server_state.tasks:  # they send their errors
                await asyncio.wait(set(tasks), timeout=_LAST_WORDS)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)


def listen(config: ServerConfig) -> socket.socket:
    """A bound socket, made before the model is loaded. OSError where the address is taken."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off, which costs 40 ms a reply, only where it sees TCP named.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((config.host, config.port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{config.host}:{config.port}") from None
    return bound


def serve(
    app: Starlette,
    config: ServerConfig,
    bound: socket.socket,
    *,
    on_listening: Callable[[int], None],
) -> None:
    """Serve until SIGTERM, or SIGINT, which raises KeyboardInterrupt once all is shut down."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    # uvicorn raises the signal that ended it again once it is done.
    before = signal.signal(signal.SIGTERM, end)
    try:
        Server(app, config, on_listening=on_listening).run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
