"""Dialect: one API in which clients ask for answers. One file each, and a row in ``endpoints``."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from kvreuse.api.ask import Ask
from kvreuse.api.outputs import Delta, RequestOutput
from kvreuse.llm import LLM
from kvreuse.server.errors import APIError
from kvreuse.server.framing import SSE, Framing
from kvreuse.server.inputs import Inputs
from kvreuse.server.request_log import Origin
from kvreuse.server.schema.fields import ModelBody
from kvreuse.server.schema.replies import ErrorReply

B = TypeVar("B", bound=ModelBody)

Object = Mapping[str, Any]
"""A JSON object: a whole reply, or one event of a stream."""


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """What a dialect may know of the server."""

    llm: LLM
    inputs: Inputs
    """Makes asks of texts, token ids and conversations."""
    name: str
    """The model's name in replies."""
    fingerprint: str
    """Stands for everything but tokens that the bits of an answer depend on."""


class Reply(ABC):
    """The replies to one request. A stream calls ``push`` and ``end``, else ``whole`` is called.

    ``push`` is called on the event loop and must be quick. The others see results, whose ``miss``
    may take long to put into words; for long prompts they are called in a thread.
    """

    origin: Origin
    """What the request log says about the request."""

    @abstractmethod
    def push(self, prompt: int, delta: Delta) -> Sequence[Object]:
        """The events for a delta of the ask at position ``prompt``."""

    @abstractmethod
    def end(self, outputs: Sequence[RequestOutput]) -> Sequence[Object]:
        """The events after the last delta; ``outputs`` are the results, one for each ask."""

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> Object:
        """The reply that is not a stream."""


class Dialect(ABC, Generic[B]):
    """From a body to asks, and to the reply that their answers become."""

    name: ClassVar[str]
    """The operation's id in the OpenAPI document."""
    path: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for the OpenAPI document."""
    body: type[B]
    """Checks the body."""
    whole: ClassVar[Any]
    """The type of a whole reply."""
    event: ClassVar[Any]
    """The type of an event."""
    failure: ClassVar[Any] = ErrorReply
    """The type of an error."""
    framing: ClassVar[Framing] = SSE
    """How events are written."""

    def __init__(self, served: Served) -> None:
        self.served = served

    @abstractmethod
    def streams(self, asked: B) -> bool:
        """Whether the reply is to be a stream."""

    @abstractmethod
    def compiles(self, asked: B) -> bool:
        """Whether ``asks`` compiles a grammar, which may take seconds even for a small body."""

    @abstractmethod
    def asks(self, asked: B) -> list[Ask]:
        """The prompts, each with an id of its own. It is called once.

        RequestError or APIError where they cannot be served.
        """

    @abstractmethod
    def reply(self, asked: B, asks: Sequence[Ask]) -> Reply:
        """The replies to ``asks``, which are those of ``asked``."""

    def error(self, error: APIError) -> Object:
        """An error as a reply, and as the last event of a stream; of the type ``failure``."""
        return error.body()
