"""Fetches ``org/repo:file.gguf`` from the Hugging Face Hub, resumes after a cut, and verifies it.

The package ``huggingface_hub`` provides the address (``HF_ENDPOINT``), the user's token and
proxies, and a file's SHA-256. The bytes are received here, so that a download can be resumed by
another process: they are appended to ``SHA256.part`` beside the blob.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import filelock
from huggingface_hub import HfApi, constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from kvreuse.errors import ModelFileError, shown
from kvreuse.model.fetch import hub
from kvreuse.model.fetch.download import Progress, sha256
from kvreuse.model.fetch.folders import SUFFIX, is_plain
from kvreuse.model.fetch.hub import HubName
from kvreuse.sizes import format_size

CHUNK = 1 << 20
PAUSES = (0.0, 1.0, 2.0, 4.0)
"""Seconds to wait before each new attempt; after one that brought bytes, from the first again."""
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as cut."""
NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class _Remote:
    """A file as the hub describes it. ``url`` contains the commit: its content cannot change."""

    url: str
    commit: str
    sha256: str
    size: int


def pull(name: HubName, progress: Progress) -> Path:
    """The file in the hub's cache, fetched and verified unless it is there already.

    ``progress(done, total)``: bytes of the file, those of an earlier attempt included. Without a
    connection, a file in the cache is verified against the SHA-256 that it is stored under.

    Raises ``ModelFileError`` where there is no such repository or file, no access, no connection or
    no room, and where the content is not what the hub says; ``OSError`` where the cache cannot be
    written.
    """
    if not name.file.endswith(SUFFIX) or not is_plain(name.file):
        _fail_with_names(name, f"which file of {name.repo}?")
    try:
        remote = _look_up(name)
    except EntryNotFoundError:
        _fail_with_names(name, f"{name.repo} has no file {shown(name.file)};")
    except Exception as error:  # the transport's classes differ between versions
        if _is_answer(error) or (path := hub.find(name)) is None:
            raise _explained(name, error) from None
        return _verified(name, path)
    blob = name.storage / "blobs" / remote.sha256
    blob.parent.mkdir(parents=True, exist_ok=True)
    with _alone(blob, name):
        if not (blob.is_file() and sha256(blob) == remote.sha256):
            _fetch(name, remote, blob, progress)
    return _link(name, remote, blob)


def _look_up(name: HubName) -> _Remote:
    """Ask the hub. Raises its package's errors, ``ModelFileError`` for an incomplete answer."""
    url = _url(name, hub.REVISION)
    found = get_hf_file_metadata(url)
    if found.commit_hash is None or not found.commit_hash.isalnum() or found.size is None:
        raise ModelFileError(f"{name}: the server does not answer as a hub does: {url}")
    if found.etag is None or not _is_sha256(found.etag):
        raise ModelFileError(f"{name}: the hub has no SHA-256 of this file: not fetched")
    return _Remote(_url(name, found.commit_hash), found.commit_hash, found.etag, found.size)


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)).rstrip("/")


def _url(name: HubName, revision: str) -> str:
    return hf_hub_url(name.repo, name.file, revision=revision, endpoint=_endpoint())


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _fetch(name: HubName, remote: _Remote, blob: Path, progress: Progress) -> None:
    """Write ``blob``, first as a ``.part`` file, which stays if the connection is lost."""
    part = blob.with_name(f"{blob.name}.part")
    part.touch()
    with part.open("r+b") as file:
        if file.seek(0, os.SEEK_END) > remote.size:
            _empty(file)
        needed, free = remote.size - file.tell(), shutil.disk_usage(part.parent).free
        if free < needed:
            raise ModelFileError(
                f"{name}: {format_size(needed)} are missing, {format_size(free)} are free "
                f"in {part.parent}"
            )
        _fill(name, remote, file, progress)
        file.flush()
        os.fsync(file.fileno())
    if (got := sha256(part)) != remote.sha256:
        part.unlink()
        raise ModelFileError(f"{name}: the SHA-256 is {got}, not {remote.sha256}: not kept")
    part.replace(blob)


def _fill(name: HubName, remote: _Remote, file: BinaryIO, progress: Progress) -> None:
    """Append the missing bytes, with a new connection after each cut.

    Gives up when as many attempts as there are ``PAUSES`` have brought nothing.
    """
    pauses = iter(PAUSES)
    progress(file.tell(), remote.size)
    while (start := file.tell()) < remote.size:
        reason: Exception = EOFError("the server sent less than the file")
        try:
            for whole, chunk in _chunks(remote.url, start):
                if whole:
                    _empty(file)
                file.write(chunk[: remote.size - file.tell()])
                progress(file.tell(), remote.size)
        except _CutError as cut:
            reason = cut.reason
        if file.tell() > start:
            pauses = iter(PAUSES)
        elif (pause := next(pauses, None)) is None or _is_answer(reason):
            raise _explained(name, reason)
        else:
            time.sleep(pause)


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


class _CutError(Exception):
    """A transfer ended early; ``reason`` is what the transport said."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _chunks(url: str, start: int) -> Iterator[tuple[bool, bytes]]:
    """The bytes of a URL from ``start`` on.

    The flag is true with a first chunk that is the start of the file instead, which a server sends
    that knows no ranges. Raises ``_CutError``.
    """
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
            hf_raise_for_status(response)
            whole = start > 0 and response.status_code != 206
            for chunk in response.iter_bytes(CHUNK):
                yield whole, chunk
                whole = False
    except Exception as error:  # see pull
        raise _CutError(error) from None


def _link(name: HubName, remote: _Remote, blob: Path) -> Path:
    """Link the blob under its name, and record the commit that ``main`` is at."""
    path = name.storage / "snapshots" / remote.commit / name.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:  # a file system without links
        shutil.copyfile(blob, path)
    reference = name.storage / "refs" / hub.REVISION
    reference.parent.mkdir(exist_ok=True)
    reference.write_text(remote.commit, encoding="ascii")
    return path


@contextmanager
def _alone(blob: Path, name: HubName) -> Iterator[None]:
    """Hold the lock of a blob: two downloads would mix their bytes, so the second one fails.

    It is the lock that the hub's own package takes.
    """
    lock = filelock.FileLock(
        hub.hub_cache() / ".locks" / name.storage.name / f"{blob.name}.lock", timeout=0
    )
    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ModelFileError(f"{name}: another process is fetching it; wait for that") from None
    try:
        yield
    finally:
        lock.release()


def _verified(name: HubName, path: Path) -> Path:
    """A file of the cache, once its content has the SHA-256 that its blob is named by."""
    digest = path.resolve().name
    if _is_sha256(digest) and sha256(path) != digest:
        raise ModelFileError(f"{name}: {path} is damaged, and there is no connection to the hub")
    return path


def _is_answer(error: Exception) -> bool:
    """Whether the hub refused, as opposed to a connection that failed or a hub that is down."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code < 500
    return isinstance(error, (ModelFileError, HFValidationError))


def _explained(name: HubName, error: Exception) -> ModelFileError:
    """An error of the transport, or of the hub, in words for the user."""
    endpoint = _endpoint()
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModelFileError):
        return error
    if isinstance(error, GatedRepoError):
        where = f"{endpoint}/{name.repo}"
        words = f"{name.repo} is gated: accept its terms at {where}, then log in: hf auth login"
    elif isinstance(error, RepositoryNotFoundError):
        words = f"{endpoint} has no {name.repo}, or it is private (log in: hf auth login)"
    elif _is_answer(error):
        words = f"{name}: {reason}"
    else:
        words = f"{name}: no connection to {endpoint} ({reason}); pull again to go on from there"
    return ModelFileError(words)


def _fail_with_names(name: HubName, words: str) -> NoReturn:
    """Fail, and name the GGUF files that the repository has."""
    try:
        siblings = HfApi(endpoint=_endpoint()).model_info(name.repo).siblings or []
    except Exception as error:  # see pull
        raise _explained(name, error) from None
    files = sorted(entry.rfilename for entry in siblings if entry.rfilename.endswith(SUFFIX))
    if not files:
        raise ModelFileError(f"{name.repo} has no {SUFFIX} file")
    shown_files = ", ".join(shown(file) for file in files[:NAMES_SHOWN])
    more = f" and {len(files) - NAMES_SHOWN} more" if len(files) > NAMES_SHOWN else ""
    raise ModelFileError(f"{words} kvreuse pull {name.repo}:FILE, with one of {shown_files}{more}")
