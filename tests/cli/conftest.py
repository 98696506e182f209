"""How the tests of the command line call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvreuse.cli.app import app
from kvreuse.model.gguf.container import GGUFFile

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"KVREUSE_ISA": None, "NO_COLOR": None, "FORCE_COLOR": None}
TIMEOUT = 60
"""Seconds after which a command counts as hanging."""


def invoke(*arguments: str, stdin: bytes = b"") -> Any:
    """Run the command line in this process; the result has exit_code, stdout and stderr."""
    return CliRunner(env=ENVIRONMENT).invoke(app, list(arguments), input=stdin)


def command(*arguments: str) -> list[str]:
    """``python -m kvreuse`` with these arguments, for a process of its own."""
    return [sys.executable, "-m", "kvreuse", *arguments]


def process(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        env=environment(),
        timeout=TIMEOUT,
        check=False,
    )


def environment() -> dict[str, str]:
    """The environment without what changes the command line's behaviour."""
    return {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}


@pytest.fixture(scope="session")
def model_header(model_path: Path) -> tuple[bytes, int]:
    """The real model's bytes before its weights, and the size of the file."""
    with GGUFFile(model_path) as file:
        end = min(tensor.offset for tensor in file.tensors.values())
    with model_path.open("rb") as stream:
        return stream.read(end), model_path.stat().st_size


Damage = Callable[[bytes, bytes], Path]


@pytest.fixture
def damaged(model_header: tuple[bytes, int], tmp_path: Path) -> Damage:
    """The real model with one run of its header's bytes replaced, its weights a hole of zeros."""

    def make(old: bytes, new: bytes) -> Path:
        header, size = model_header
        assert header.count(old) == 1
        assert len(old) == len(new)
        path = tmp_path / "damaged.gguf"
        with path.open("wb") as stream:
            stream.write(header.replace(old, new))
            stream.truncate(size)
        return path

    return make
