"""A real server on a port of this machine, in a thread of the test's process."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx
from openai import OpenAI
from starlette.applications import Starlette

from kvreuse.llm import LLM
from kvreuse.server.app import create_app
from kvreuse.server.config import ServerConfig
from kvreuse.server.lifecycle import Server, listen

NAME = "small"
PATIENCE = 30.0


@dataclasses.dataclass(frozen=True)
class Running:
    """Where it is, and what is behind it."""

    url: str
    llm: LLM
    app: Starlette
    server: Server

    def http(self, **options: object) -> httpx.Client:
        """A client."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)  # type: ignore[arg-type]

    def openai(self, key: str = "none") -> OpenAI:
        """OpenAI's client, as anybody would set it up."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    @property
    def pages_in_use(self) -> int:
        """Pages that running sequences own."""
        return self.llm.pool.num_pages - self.llm.cache.num_available

    def settles(self) -> None:
        """Nothing is being served any more, within a moment."""
        wait_until(lambda: not self.llm.engine.has_unfinished)
        assert self.pages_in_use == 0
        self.llm.engine.check()


@contextmanager
def running(
    llm: LLM, config: ServerConfig | None = None, names: Sequence[str] = (NAME,)
) -> Iterator[Running]:
    """A server over ``llm``, ended as SIGTERM would end it."""
    config = dataclasses.replace(config or ServerConfig(), port=0)
    ports: list[int] = []
    app = create_app(llm, config, names)
    server = Server(app, config, on_listening=ports.append)
    with listen(config) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            wait_until(lambda: bool(ports) or not thread.is_alive())
            yield Running(f"http://127.0.0.1:{ports[0]}", llm, app, server)
        finally:
            server.should_exit = True
            thread.join()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that another thread does; AssertionError after a long while."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.002)
