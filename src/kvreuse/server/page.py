"""``/``: a page that shows the pool while it works (``page.html``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def show(request: Request) -> Response:
    """The page. It loads ``/v1/cache`` and nothing else."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    headers = {"content-security-policy": policy + "connect-src 'self'", "x-frame-options": "DENY"}
    return HTMLResponse(_html(), headers=headers)


@cache
def _html() -> str:
    return Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
