"""Retention: what a request asks for its pages once it has ended."""

from __future__ import annotations

import dataclasses

from kvreuse.errors import RequestError, shown

MAX_TTL = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Retention:
    """How long the pages of a request are to stay, and before whom it is served.

    None of it changes an answer. RequestError for a value that is out of range.
    """

    pin: bool = False
    """The full pages of the prompt are not evicted, until ``ttl`` is over or a request that starts
    with them ends its session. At most half of the pool can be pinned; a request that could
    otherwise never come to its end takes pins away, the latest first."""
    ttl: float | None = None
    """Seconds after the request's end when its own pages become the first to go, unless another
    request has used them since; a pin ends then, too. None: no such moment."""
    priority: int = 0
    """Lower values are served first, and their pages outlast those of higher ones."""
    session_end: bool = False
    """The session ends with this request: once it has ended, its own pages, those that no other
    sequence continues, are the first to go."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("pin", "session_end"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise RequestError(f"priority must be an integer, got {shown(self.priority)}")
        if self.ttl is None:
            return
        number = isinstance(self.ttl, (int, float)) and not isinstance(self.ttl, bool)
        if not number or not 0 < self.ttl <= MAX_TTL:
            raise RequestError(
                f"ttl must be a number of seconds above 0 and at most {MAX_TTL}, "
                f"got {shown(self.ttl)}"
            )

    @property
    def interrupted(self) -> Retention:
        """What holds for the pages of a request that is only interrupted: its priority."""
        return Retention(priority=self.priority)


DEFAULT_RETENTION = Retention()
