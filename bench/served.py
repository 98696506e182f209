"""A server in a process of its own, for benches."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


class Served:
    """Its address and its process."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    @property
    def resident(self) -> int:
        """Bytes of memory that the process has, as Linux counts them."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return 1024 * int(found[1])

    def get(self, path: str) -> httpx.Response:
        """The reply to a GET of ``path``. HTTPStatusError unless it is a success."""
        return httpx.get(self.url + path, timeout=60).raise_for_status()


@contextmanager
def served(model: str, *flags: str) -> Iterator[Served]:
    """``kvreuse serve`` on a free port; ended by SIGTERM, which must end it well."""
    command = [sys.executable, "-m", "kvreuse", "serve", model, "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://[^ ]+:\d+", line)
        if not found:
            raise SystemExit((line + process.stderr.read()).strip())
        try:
            yield Served(found.group(), process.pid)
        finally:
            process.terminate()
            status = process.wait(60)
        if status:
            raise SystemExit(f"the server ended with status {status}")
