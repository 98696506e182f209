"""``org/repo:file.gguf``, against a hub on this machine: whole, cut, lying, gone."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import hub, hub_download
from kvreuse.model.fetch.hub import HubName
from kvreuse.model.fetch.source import pull, resolve

from .hub_server import COMMIT, REPO, Hub, serve

CONTENT = random.Random(2).randbytes(5_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = f"{REPO}:tiny.gguf"
MiB = 1 << 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache folder, which is not there yet; nothing else of the user is seen."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KVREUSE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the environment names, and no time lost between attempts."""
    monkeypatch.setattr(hub_download, "PAUSES", (0.0, 0.0))
    files = {"tiny.gguf": CONTENT, "sub/other.gguf": CONTENT[:1000], "README.md": b"# read me"}
    with serve(Hub(files)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def storage(cache: Path) -> Path:
    return cache / "models--org--repo"


def blobs(cache: Path) -> list[str]:
    """What downloads have left."""
    return sorted(path.name for path in (storage(cache) / "blobs").glob("*"))


def error_of_pull(name: str = NAME) -> str:
    with pytest.raises(ModelFileError) as caught:
        pull(name)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_pull_and_resolve(server: Hub, cache: Path) -> None:
    with pytest.raises(ModelFileError, match=f"get it with: kvreuse pull {NAME}"):
        resolve(NAME)
    seen: list[tuple[int, int]] = []
    path = pull(NAME, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert path == storage(cache) / "snapshots" / COMMIT / "tiny.gguf" == resolve(NAME)
    assert path.resolve() == storage(cache) / "blobs" / DIGEST
    assert blobs(cache) == [DIGEST]
    assert (storage(cache) / "refs" / "main").read_text() == COMMIT
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, len(CONTENT)), (len(CONTENT), len(CONTENT)))


def test_a_token_goes_to_the_hub_alone(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(NAME)
    tokens = {request.split("/")[1]: token for request, _, token in server.requests}
    assert tokens == {"org": "Bearer hf_secret", "cdn": ""}


def test_the_hubs_own_package_finds_the_file(server: Hub, cache: Path) -> None:
    path = pull(NAME)
    script = "import huggingface_hub as h; print(h.try_to_load_from_cache('org/repo', 'tiny.gguf'))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.decode().strip() == str(path)


def test_a_file_in_a_folder(server: Hub, cache: Path) -> None:
    path = pull(f"{REPO}:sub/other.gguf")
    assert path.read_bytes() == CONTENT[:1000]
    assert [str(name) for name, _ in hub.cached()] == [f"{REPO}:sub/other.gguf"]
    pull(NAME)
    assert [str(name) for name, _ in hub.cached()] == [f"{REPO}:sub/other.gguf", NAME]


def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(server: Hub, cache: Path) -> None:
    path = pull(NAME)
    assert pull(NAME) == path
    assert server.downloads() == [""]
    path.resolve().write_bytes(CONTENT[:-1] + b"?")
    assert pull(NAME).read_bytes() == CONTENT
    assert server.downloads() == ["", ""]


def test_a_cut_connection_goes_on_where_it_stopped(server: Hub, cache: Path) -> None:
    server.cut_after = [2 * MiB, 1 * MiB, 0]
    assert pull(NAME).read_bytes() == CONTENT
    ranges = [f"bytes={3 * MiB}-", f"bytes={3 * MiB}-"]
    assert server.downloads() == ["", f"bytes={2 * MiB}-", *ranges]
    assert blobs(cache) == [DIGEST]


def test_the_next_process_goes_on_where_the_last_one_stopped(server: Hub, cache: Path) -> None:
    server.cut_after = [3 * MiB, 0, 0, 0]
    message = error_of_pull()
    assert f"no connection to {server.endpoint} (" in message
    assert message.endswith("pull again to go on from there")
    assert blobs(cache) == [f"{DIGEST}.part"]
    seen: list[int] = []
    assert pull(NAME, progress=lambda done, _: seen.append(done)).read_bytes() == CONTENT
    assert server.downloads()[-1] == f"bytes={3 * MiB}-"
    assert seen[0] == 3 * MiB


def test_an_interrupt_keeps_what_has_come(server: Hub, cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= 2 * MiB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(NAME, progress=interrupt)
    assert (storage(cache) / "blobs" / f"{DIGEST}.part").stat().st_size == 2 * MiB
    assert pull(NAME).read_bytes() == CONTENT
    assert server.downloads() == ["", f"bytes={2 * MiB}-"]


def test_a_server_without_ranges_sends_all_again(server: Hub) -> None:
    server.ranges = False
    server.cut_after = [2 * MiB]
    assert pull(NAME).read_bytes() == CONTENT
    assert server.downloads() == ["", f"bytes={2 * MiB}-"]


def test_a_wrong_digest(server: Hub, cache: Path) -> None:
    server.sent_instead = CONTENT[:-1] + b"?"
    message = error_of_pull()
    assert "the SHA-256 is " in message
    assert message.endswith(f"not {DIGEST}: not kept")
    assert blobs(cache) == []
    assert hub.find(HubName(REPO, "tiny.gguf")) is None


def test_a_part_of_something_else(server: Hub, cache: Path) -> None:
    part = storage(cache) / "blobs" / f"{DIGEST}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    assert "not kept" in error_of_pull()
    part.write_bytes(bytes(len(CONTENT) + 1))
    assert pull(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", ["5e1c309dae7f45e0f39b1bf3ac3cd9db12e7d689", '../"x'])
def test_a_file_without_a_sha256(digest: str, server: Hub, cache: Path) -> None:
    server.digest = digest
    assert "no SHA-256" in error_of_pull()


@pytest.mark.parametrize("file", ["absent.gguf", "Q4_K_M", "", "../tiny.gguf", "/etc/x.gguf"])
def test_no_such_file(file: str, server: Hub) -> None:
    message = error_of_pull(f"{REPO}:{file}")
    assert message.endswith(f"kvreuse pull {REPO}:FILE, with one of 'sub/other.gguf', 'tiny.gguf'")
    assert REPO in message.partition(" kvreuse ")[0]


def test_a_repository_alone(server: Hub) -> None:
    assert error_of_pull(REPO).startswith(f"which file of {REPO}? kvreuse pull {REPO}:FILE")


def test_many_files_and_none(server: Hub) -> None:
    server.files = {f"{i:02}.gguf": b"" for i in range(20)}
    assert error_of_pull(REPO).endswith("'11.gguf' and 8 more")
    server.files = {"README.md": b""}
    assert error_of_pull(REPO) == f"{REPO} has no .gguf file"


def test_no_such_repository(server: Hub) -> None:
    for name in ("org/none:x.gguf", "org/none"):
        assert error_of_pull(name).startswith(
            f"{server.endpoint} has no org/none, or it is private"
        )


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", f"{REPO} is gated: accept its terms at "),
        (403, "", f"{NAME}: "),
        (503, "", "no connection to "),
    ],
)
def test_refusals(status: int, code: str, words: str, server: Hub) -> None:
    server.status, server.error_code = status, code
    assert words in error_of_pull()


def test_a_server_that_is_no_hub(server: Hub) -> None:
    server.status = 200
    assert "does not answer as a hub does" in error_of_pull()


def test_offline(cache: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull(NAME)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert pull(NAME) == path
    path.resolve().write_bytes(CONTENT[:-1] + b"?")
    assert "is damaged, and there is no connection" in error_of_pull()
    assert "no connection to http://127.0.0.1:9 (" in error_of_pull(f"{REPO}:sub/other.gguf")


def test_two_at_a_time(cache: Path, server: Hub) -> None:
    def again(done: int, total: int) -> None:
        assert "another process is fetching it" in error_of_pull()

    pull(NAME, progress=again)


def test_no_room(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2048))
    assert "4.77 MiB are missing, 2 KiB are free in " in error_of_pull()


def test_a_cache_that_cannot_be_written(server: Hub, tmp_path: Path) -> None:
    (tmp_path / "hf").touch()
    assert "Not a directory" in error_of_pull()


@pytest.mark.parametrize("missing", ["huggingface_hub", "filelock"])
def test_without_the_extra(missing: str, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kvreuse.model.fetch.hub_download")
    monkeypatch.delattr("kvreuse.model.fetch.hub_download")
    monkeypatch.setitem(sys.modules, missing, None)
    assert error_of_pull().endswith('pip install "kvreuse[hub]"')


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert hub.hub_cache() == cache
    monkeypatch.setenv("HF_HUB_CACHE", "~/$KVREUSE_MODELS")
    assert hub.hub_cache() == Path(f"{Path.home()}/{os.environ['KVREUSE_MODELS']}")
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert hub.hub_cache() == Path("/caches/huggingface/hub")


def test_a_reference_that_leads_elsewhere(cache: Path) -> None:
    reference = storage(cache) / "refs" / "main"
    reference.parent.mkdir(parents=True)
    for commit in ("../..", "", "a/b", "\0"):
        reference.write_text(commit)
        assert list(hub.cached()) == []
        assert hub.find(HubName(REPO, "tiny.gguf")) is None


def test_names() -> None:
    assert hub.parse("a/b:c/d.gguf") == HubName("a/b", "c/d.gguf")
    assert hub.parse("a/b") == HubName("a/b", "")
    for name in ("a", "a:b", "/a/b:c", "a/b/c:d", "../b:c.gguf", "a/..:c.gguf", "a/b c:d"):
        assert hub.parse(name) is None
