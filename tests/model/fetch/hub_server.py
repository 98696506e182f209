"""A Hugging Face Hub of one repository on 127.0.0.1, with the faults that a network has."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPO = "org/repo"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, how it fails, and what it was asked."""

    files: dict[str, bytes]
    sent_instead: bytes | None = None
    """Content that is sent in place of a file's."""
    digest: str | None = None
    """The etag of every file, instead of its SHA-256."""
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next downloads is cut."""
    ranges: bool = True
    status: int | None = None
    """The answer to everything, and its error code as the hub's header says it."""
    error_code: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(method and path, Range header, Authorization header) of all that was asked."""
    endpoint: str = ""

    def downloads(self) -> list[str]:
        """The ranges that were asked for, one a download."""
        return [asked for request, asked, _ in self.requests if request.startswith("GET /cdn/")]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run ``hub`` at ``hub.endpoint`` while the body runs."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        """The facts of a file."""
        self._answer()

    def do_GET(self) -> None:
        """A file, or the list of them."""
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing to the screen."""

    def _answer(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        asked, token = (self.headers.get(name, "") for name in ("Range", "Authorization"))
        hub.requests.append((f"{self.command} {path}", asked, token))
        if hub.status is not None:
            self._send(hub.status, {"X-Error-Code": hub.error_code} if hub.error_code else {})
        elif path.startswith(f"/api/models/{REPO}"):
            siblings = [{"rfilename": name} for name in hub.files]
            body = {"id": REPO, "sha": COMMIT, "siblings": siblings}
            self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        elif path.startswith(f"/{REPO}/resolve/"):
            self._resolve(path.split("/", 5)[5])
        elif path.startswith("/cdn/"):
            self._download(hub.files[path.removeprefix("/cdn/")])
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, name: str) -> None:
        """What the hub says of a file, and where its content is."""
        if (content := self.hub.files.get(name)) is None:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        digest = self.hub.digest or hashlib.sha256(content).hexdigest()
        self._send(
            302,
            {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{digest}"',
                "ETag": '"of-the-redirect"',
                # Another host, as the hub's content is on one.
                "Location": f"{self.hub.endpoint.replace('127.0.0.1', 'localhost')}/cdn/{name}",
            },
        )

    def _download(self, content: bytes) -> None:
        content = content if self.hub.sent_instead is None else self.hub.sent_instead
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        headers, status = {}, 200
        if asked and self.hub.ranges:
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            status, content = 206, content[start:]
        self._send(
            status, headers, content, self.hub.cut_after.pop(0) if self.hub.cut_after else None
        )

    def _send(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            self.wfile.flush()
        self.close_connection = True
