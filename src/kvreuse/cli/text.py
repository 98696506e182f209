"""Numbers and lines as a person reads them, and the two streams of a terminal."""

from __future__ import annotations

import sys
import unicodedata

from rich.console import Console


def stdout() -> Console:
    """Standard output; colours only where it is a terminal."""
    return Console(highlight=False, emoji=False)


def stderr() -> Console:
    """Standard error; colours only where it is a terminal."""
    return Console(stderr=True, highlight=False, emoji=False)


def duration(seconds: float) -> str:
    """A time with three digits or so: ``14 ms``, ``2.3 s``."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s"


def rate(tokens: int, seconds: float) -> float | None:
    """Tokens per second; ``None`` where there is nothing to divide."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def plural(count: int, noun: str) -> str:
    """``1 page``, ``2 pages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str) -> str:
    """The text with line breaks and control characters turned into single spaces."""
    return " ".join("".join(c if _printable(c) else " " for c in text).split())


def for_terminal(text: str) -> str:
    """A model's text without the control characters that could drive a terminal; keeps \\n, \\t."""
    return "".join(c for c in text if c in "\n\t" or _printable(c))


def _printable(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cs")


def write_out(text: str) -> None:
    """Write to standard output at once; characters that its encoding lacks become ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
