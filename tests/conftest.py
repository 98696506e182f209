"""What all tests share: the real model, and the account of instruction sets that were tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kvreuse.ops import native

from . import real_models

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
