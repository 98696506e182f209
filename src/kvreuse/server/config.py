"""ServerConfig: everything that can be set about the server. The flags of serve are these."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvreuse.errors import ConfigError
from kvreuse.sizes import parse_size

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names by which only this machine reaches a server."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server. Raises ConfigError, naming the flag, for one that cannot be."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one that this machine has."""
    port: int = 8000
    """Port to listen on; 0 is any that is free."""
    served_model_name: Sequence[str] = ()
    """Name of the model to clients, in place of MODEL; may be given again."""
    api_key: Sequence[str] = ()
    """A key that clients must send (Authorization: Bearer KEY); may be given again. Other users of
    this machine can see it: prefer the file."""
    api_key_file: str | None = None
    """A file with such keys, one a line."""
    max_queue: int = 256
    """Answers that may wait beyond the --max-num-seqs that are served; more get a 429."""
    max_body_size: int | str = "4MiB"
    """Largest body of a request."""
    shutdown_timeout: float = 30.0
    """Seconds that answers under way get to finish after SIGTERM; then they are cancelled."""
    stall_timeout: float = 120.0
    """Seconds without a step, while there is work, after which /health says 503."""
    allow_origin: Sequence[str] = ()
    """A web origin whose pages may use this server (CORS), or *; may be given again."""
    allow_host: Sequence[str] = ()
    """A host name under which the server may be asked while it listens on this machine only and
    wants no key; may be given again. Others are refused, for a web page can give any name
    this machine's address."""
    request_log: str | None = None
    """Append one JSON line for each request to this file: lengths, reuse, times; no text."""
    log_prompts: bool = False
    """Put the text of prompts and answers in the request log, and that of prefixes in /v1/cache."""

    def __post_init__(self) -> None:
        """Check every field."""
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be from 0 to 65535, got {self.port}")
        if self.max_queue < 0:
            raise ConfigError(f"--max-queue must be at least 0, got {self.max_queue}")
        for name in ("shutdown_timeout", "stall_timeout"):
            if not 0 <= getattr(self, name) < float("inf"):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} must be seconds of at least 0")
        if self.log_prompts and self.request_log is None:
            raise ConfigError("--log-prompts needs the --request-log FILE that they go to")
        parse_size(self.max_body_size, "--max-body-size")

    @property
    def max_body_bytes(self) -> int:
        """``max_body_size`` in bytes."""
        return parse_size(self.max_body_size, "--max-body-size")

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in LOOPBACK

    def check_files(self) -> None:
        """Raise what :meth:`keys` raises, and OSError where the log cannot be written."""
        self.keys()
        if self.request_log is not None:
            Path(self.request_log).open("a", encoding="utf-8").close()

    def keys(self) -> tuple[str, ...]:
        """All keys. ConfigError for a file that has none; OSError where it cannot be read."""
        keys = tuple(self.api_key)
        if self.api_key_file is not None:
            try:
                text = Path(self.api_key_file).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise ConfigError(f"{self.api_key_file} is not UTF-8") from None
            found = tuple(line.strip() for line in text.splitlines() if line.strip())
            if not found:
                raise ConfigError(f"{self.api_key_file} holds no key")
            keys += found
        if not all(keys):
            raise ConfigError("--api-key must not be empty")
        return keys
