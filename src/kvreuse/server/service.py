"""Service: what the routes share. Prompts in, results and deltas out, and nobody too many."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.engine.threaded import AsyncEngine
from kvreuse.errors import EngineClosedError, KVReuseError
from kvreuse.llm import LLM
from kvreuse.server.config import ServerConfig
from kvreuse.server.errors import APIError, as_api_error
from kvreuse.server.inputs import Inputs
from kvreuse.server.metrics import ServerMetrics
from kvreuse.server.request_log import Origin, RequestLog

logger = logging.getLogger("kvreuse.server")
T = TypeVar("T")
INLINE_BYTES = 8192
"""Bodies up to this size are made into prompts on the event loop: a thread would take longer."""
INLINE_TOKENS = 1024
"""Conversations up to this length are remembered there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A prompt to be answered, and where it came from."""

    ask: Ask
    """It has a ``request_id``."""
    origin: Origin


class Service:
    """An LLM behind an event loop. Enter it there."""

    def __init__(self, llm: LLM, config: ServerConfig, names: Sequence[str]) -> None:
        """``names`` are those of the model, the first one the one that replies bear."""
        self.llm = llm
        self.config = config
        self.names = tuple(names)
        self.metrics = ServerMetrics(llm, self.names[0])
        self.inputs = Inputs(llm)
        self.fingerprint = f"kvreuse-{llm.cache.namespace.hex()[:12]}"
        """Everything but tokens that the bits of an answer depend on."""
        self.started = time.time()
        self.draining = False
        """No new requests are taken."""
        self.engine = AsyncEngine(llm.engine, on_step=self.metrics.on_step, on_end=self._on_end)
        self._log: RequestLog | None = None
        self._jobs: dict[str, Job] = {}  # of the requests that the engine has
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # One thread: templates and tokenisers hold the interpreter, more would not be faster.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvreuse prompts")
        # Nor does anybody else's prompt wait for a form that takes long.
        self._forms = ThreadPoolExecutor(1, thread_name_prefix="kvreuse forms")

    async def __aenter__(self) -> Service:
        """Start the engine's thread, open the log."""
        if self.config.request_log is not None:
            self._log = RequestLog(self.config.request_log, log_prompts=self.config.log_prompts)
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Abort what is left."""
        await self.engine.__aexit__(None, None, None)
        await asyncio.sleep(0)  # the last words of the engine's thread
        for pool in (self._pool, self._forms):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._log is not None:
            self._log.close()

    @property
    def capacity(self) -> int:
        """Answers that may be under way and waiting."""
        return self.llm.config.max_num_seqs + self.config.max_queue

    @property
    def pending(self) -> int:
        """Answers that are under way or waiting."""
        return self._pending

    def check_model(self, name: str | None) -> None:
        """APIError unless this model is served; none given is this one."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            message = f"the model {name!r} does not exist here: this server has {served}"
            raise APIError(404, message, code="model_not_found", param="model")

    async def prepare(self, size: int, make: Callable[[], T], *, form: bool = False) -> T:
        """What ``make`` makes of a body of ``size`` bytes, without holding up the event loop.

        ``form``: of one with a form to be compiled, which may take long even of a small one.
        """
        if size <= INLINE_BYTES and not form:
            return make()
        pool = self._forms if form else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, make)

    @contextmanager
    def seats(self, answers: int) -> Iterator[None]:
        """Room for so many answers. APIError where there is none now, or never will be."""
        if self.draining:
            raise shutting_down()
        if answers > self.capacity:
            message = f"{answers} answers at once: this server takes {self.capacity} at most"
            raise APIError(400, message, code="invalid_value", param="n")
        if self._pending + answers > self.capacity:
            wait = str(self._wait())
            message = f"{self._pending} answers are under way: try again in {wait} s or so"
            raise APIError(429, message, code="overloaded", headers={"retry-after": wait})
        self._pending += answers
        self._idle.clear()
        try:
            yield
        finally:
            self._pending -= answers
            if not self._pending:
                self._idle.set()

    async def answer(self, job: Job) -> RequestOutput:
        """The result. APIError for whatever it fails by."""
        self._take_on(job)
        try:
            output = await self.engine.answer(job.ask)
        except BaseException as error:
            raise self._failed(job, error) from None
        return _unbroken(output)

    async def stream(self, job: Job) -> AsyncGenerator[Delta, None]:
        """The deltas. APIError for whatever it fails by."""
        self._take_on(job)
        deltas = self.engine.stream(job.ask)
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    if delta.output is not None:
                        _unbroken(delta.output)
                    yield delta
        except BaseException as error:
            raise self._failed(job, error) from None

    async def drain(self) -> None:
        """Take nothing more, and let what is under way finish within the time for it."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), self.config.shutdown_timeout)
        except asyncio.TimeoutError:
            with suppress(EngineClosedError):
                await self.engine.abort(*self._jobs)

    def _take_on(self, job: Job) -> None:
        """The engine is about to have ``job``."""
        assert job.ask.request_id is not None
        self._jobs[job.ask.request_id] = job

    def _on_end(self, output: RequestOutput) -> None:
        self.metrics.on_end(output)
        job = self._jobs.pop(output.request_id, None)
        if job is None:
            return
        if self._log is not None:
            self._log.write(output, job.origin, job.ask.cache_salt)
        if len(output.prompt_token_ids) <= INLINE_TOKENS:
            self.llm.chats.remember(job.ask, output)
        else:
            self._pool.submit(self.llm.chats.remember, job.ask, output)

    def _failed(self, job: Job, error: BaseException) -> BaseException:
        """What to raise for ``error``; ``job`` is forgotten once its last words are heard."""
        task = asyncio.create_task(self._forget(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not isinstance(error, Exception):
            return error
        if not isinstance(error, KVReuseError):
            logger.error("a request failed: %r", error, exc_info=error)
        return as_api_error(error)

    async def _forget(self, job: Job) -> None:
        """``_on_end`` comes before the answer to any order given later."""
        with suppress(EngineClosedError):
            await self.engine.call(lambda: None)
        self._jobs.pop(job.ask.request_id or "", None)

    def _wait(self) -> int:
        """Seconds until a place may be free: what an answer took so far, for all in front."""
        done = self.llm.engine.counters.finished
        rate = done / max(time.time() - self.started, 1e-3)
        excess = max(1, self._pending - self.llm.config.max_num_seqs)
        return max(1, min(60, round(excess / rate) if rate else 1))


def shutting_down() -> APIError:
    """The server ends."""
    return APIError(
        503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"}
    )


def _unbroken(output: RequestOutput) -> RequestOutput:
    """``output``, unless it was cut short. APIError then."""
    for answer in output.outputs:
        if answer.finish_reason == "abort":
            if answer.stop_reason is not None:
                raise APIError(400, f"the answer cannot go on: {answer.stop_reason}")
            raise shutting_down()
    return output
