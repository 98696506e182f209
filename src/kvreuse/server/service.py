"""Service: the engine behind an event loop, with what all routes share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.threaded import AsyncEngine
from kvreuse.errors import EngineClosedError, KVReuseError
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig
from kvreuse.server.dialects.dialect import Served
from kvreuse.server.errors import APIError, as_api_error, shutting_down
from kvreuse.server.inputs import Inputs
from kvreuse.server.metrics import ServerMetrics
from kvreuse.server.request_log import Origin, RequestLog
from kvreuse.server.seats import Seats

logger = logging.getLogger("kvreuse.server")
T = TypeVar("T")
INLINE_BYTES = 8192
"""Texts of up to this size are worked on in the event loop: a thread would take longer."""
TOKEN_BYTES = 8
"""Bytes of text that take as long as a token id."""


class Service:
    """An LLM behind an event loop. Enter it there."""

    def __init__(self, llm: LLM, config: ServerConfig, names: Sequence[str]) -> None:
        """``names`` are the model's; replies have the first one."""
        self.llm = llm
        self.config = config
        self.names = tuple(names)
        self.metrics = ServerMetrics(llm, self.names[0])
        self.inputs = Inputs(llm)
        fingerprint = f"kvreuse-{llm.cache.namespace.hex()[:12]}"
        self.served = Served(llm, self.inputs, self.names[0], fingerprint)
        self.seats = Seats(
            llm.config.max_num_seqs, config.max_queue, lambda: llm.engine.counters.finished
        )
        self.started = time.time()
        self.engine = AsyncEngine(llm.engine, on_step=self.metrics.on_step, on_end=self._on_end)
        self._log: RequestLog | None = None
        self._asked: dict[str, tuple[Ask, Origin]] = {}  # requests that the engine has, by id
        self._tasks: set[asyncio.Future[None]] = set()  # kept from the garbage collector
        # One thread: templates and tokenisers hold the interpreter, more would not be faster.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvreuse prompts")
        # Grammars have their own: no prompt waits for one that takes long to compile.
        self._forms = ThreadPoolExecutor(1, thread_name_prefix="kvreuse forms")

    async def __aenter__(self) -> Service:
        """Start the engine's thread, open the log."""
        if self.config.request_log is not None:
            text = self.config.log_prompts
            self._log = RequestLog(self.config.request_log, self.names[0], log_prompts=text)
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Abort what is left; the log gets a line for it."""
        self.seats.closed = True
        await self.engine.__aexit__(None, None, None)
        await asyncio.sleep(0)  # for what the engine's thread has put on the event loop
        if self._tasks:
            await asyncio.wait(self._tasks)
        for pool in (self._pool, self._forms):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._log is not None:
            self._log.close()

    def check_model(self, name: str | None) -> None:
        """APIError unless this model is served; None stands for it."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            message = f"the model {name!r} does not exist here: this server has {served}"
            raise APIError(404, message, code="model_not_found", param="model")

    async def prepare(self, size: int, make: Callable[[], T], *, form: bool = False) -> T:
        """The result of ``make``, which works on ``size`` bytes, without blocking the event loop.

        ``form``: it compiles a grammar, which may take long even for a small body.
        """
        if size <= INLINE_BYTES and not form:
            return make()
        pool = self._forms if form else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, make)

    async def answer(self, ask: Ask, origin: Origin) -> RequestOutput:
        """The result. APIError where it fails."""
        self._take_on(ask, origin)
        try:
            output = await self.engine.answer(ask)
        except BaseException as error:
            raise self._failed(ask, error) from None
        return _complete(output)

    async def stream(self, ask: Ask, origin: Origin) -> AsyncGenerator[Delta, None]:
        """The deltas. APIError where it fails."""
        self._take_on(ask, origin)
        deltas = self.engine.stream(ask)
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    if delta.output is not None:
                        _complete(delta.output)
                    yield delta
        except BaseException as error:
            raise self._failed(ask, error) from None

    async def drain(self) -> None:
        """Take nothing more, let answers finish within --shutdown-timeout, then abort the rest."""
        self.seats.closed = True
        try:
            await asyncio.wait_for(self.seats.empty(), self.config.shutdown_timeout)
        except asyncio.TimeoutError:
            with suppress(EngineClosedError):
                await self.engine.abort(*self._asked)

    def _take_on(self, ask: Ask, origin: Origin) -> None:
        """The engine is about to get ``ask``."""
        assert ask.request_id is not None
        self._asked[ask.request_id] = ask, origin

    def _on_end(self, output: RequestOutput) -> None:
        """A request has ended; its reader gets the result after this."""
        self.metrics.on_end(output)
        asked = self._asked.pop(output.request_id, None)
        if asked is None:
            return
        if weight([output]) <= INLINE_BYTES:
            self._record(output, *asked)
        else:
            loop = asyncio.get_running_loop()
            self._keep(loop.run_in_executor(self._pool, self._record, output, *asked))

    def _record(self, output: RequestOutput, ask: Ask, origin: Origin) -> None:
        """Log a request, and remember the tokens of a chat for its next turn."""
        try:
            if self._log is not None:
                self._log.write(output, origin, ask.cache_salt)
            self.llm.chats.remember(ask, output)
        except Exception:
            logger.exception("a request could not be recorded")

    def _failed(self, ask: Ask, error: BaseException) -> BaseException:
        """What to raise for ``error``; ``ask`` is forgotten once the engine has ended it."""
        self._keep(asyncio.create_task(self._forget(ask)))
        if not isinstance(error, Exception):
            return error
        if isinstance(error, EngineClosedError) and self.seats.closed:
            return shutting_down()
        if not isinstance(error, KVReuseError):
            logger.error("a request failed: %r", error, exc_info=error)
        return as_api_error(error)

    async def _forget(self, ask: Ask) -> None:
        """Wait until ``_on_end`` was called for ``ask``: it comes before the reply to an order."""
        with suppress(EngineClosedError):
            await self.engine.call(lambda: None)
        self._asked.pop(ask.request_id or "", None)

    def _keep(self, task: asyncio.Future[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def weight(outputs: Sequence[RequestOutput]) -> int:
    """The size of results as :meth:`Service.prepare` takes it: bytes of their prompts."""
    return sum(
        max(len(one.prompt or ""), TOKEN_BYTES * len(one.prompt_token_ids)) for one in outputs
    )


def _complete(output: RequestOutput) -> RequestOutput:
    """``output``, unless it was cut short. APIError then."""
    for answer in output.outputs:
        if answer.finish_reason == "abort":
            if answer.stop_reason is not None:
                raise APIError(400, f"the answer cannot go on: {answer.stop_reason}")
            raise shutting_down()
    return output
