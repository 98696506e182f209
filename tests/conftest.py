"""What all tests share: the real model, and the account of instruction sets that were tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kvreuse.kv.codec import CODEC_NAMES
from kvreuse.ops import native

from . import real_models
from .kv_codecs import REAL_CODECS
from .model.gguf_files import write_tiny

TESTED = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model's file; fetched into the user's models folder where it is not there yet."""
    return real_models.default_model()


@pytest.fixture(scope="module")
def real_model(request: pytest.FixtureRequest, model_path: Path) -> Path:
    """A real model's file. A test that takes it runs on the default one, and with ``--real-models``
    on every other that lies in a folder of models."""
    return model_path if request.param is None else real_models.others_here()[request.param]


@pytest.fixture(scope="module", params=CODEC_NAMES)
def codec(request: pytest.FixtureRequest) -> str:
    """The name of a codec of keys and values; a test that takes it runs once per codec."""
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 3 layers, 3 query heads to a KV head of 64 channels, and random weights."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return write_tiny(path, layers=3, head_dim=64, heads=6, kv_heads=2, vocab=2048, context=2048)


@pytest.fixture(scope="module")
def codec_model(model_path: Path, tiny_model: Path, codec: str) -> Path:
    """The model to test a codec with: the real one for ``bf16``, and for ``auto``, which has planes
    of every codec; a tiny one is enough for the others."""
    return model_path if codec in REAL_CODECS else tiny_model


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> str:
    """The name of one instruction-set path; a test that takes it runs once per path of this CPU."""
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-isas",
        action="store_true",
        help="fail where an instruction-set path that this CPU has was not tested",
    )
    parser.addoption(
        "--real-models",
        action="store_true",
        help="test all real models that are here, not the default one only: minutes more",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TESTED] = Counter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", native.available_isas(), indirect=True)
    if "real_model" in metafunc.fixturenames:
        others = real_models.others_here() if metafunc.config.getoption("--real-models") else {}
        metafunc.parametrize(
            "real_model",
            [None, *others],
            indirect=True,
            ids=lambda name: name or "default",
            scope="module",
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if report.when == "call" and report.passed and "isa" in params:
        item.config.stash[TESTED][str(params["isa"])] += 1
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--all-isas") and exitstatus == 0 and _untested(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    tested = config.stash[TESTED]
    if not tested and not config.getoption("--all-isas"):
        return
    ran = ", ".join(f"{name} ({count})" for name, count in tested.items()) or "none"
    has = ", ".join(native.available_isas())
    terminalreporter.write_line(
        f"ISA paths tested, with how many tests: {ran} (of those this CPU has: {has})"
    )
    if config.getoption("--all-isas") and (missing := _untested(config)):
        terminalreporter.write_line(f"error: not tested: {', '.join(missing)}", red=True)


def _untested(config: pytest.Config) -> list[str]:
    return [name for name in native.available_isas() if not config.stash[TESTED][name]]
