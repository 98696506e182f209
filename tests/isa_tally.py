"""The account of instruction-set paths: which of them tests ran on, and that none was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from kvreuse.ops import native

_PROPERTY = "isa"


class IsaTally:
    """Counts the tests that passed on each path. Tests may run in other processes than this."""

    def __init__(self, *, all_isas: bool) -> None:
        """``all_isas``: to have left out a path of this CPU is a failure."""
        self._all = all_isas
        self._passed: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """In the process that runs the test: its path goes along with its report."""
        report = yield
        params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
        if _PROPERTY in params:
            report.user_properties.append((_PROPERTY, str(params[_PROPERTY])))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the process that was started by hand."""
        if report.when == "call" and report.passed:
            self._passed.update(
                str(path) for name, path in report.user_properties if name == _PROPERTY
            )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail where a path is missing; a worker of several has only its share."""
        if exitstatus == 0 and self._missing() and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What ran."""
        if not self._passed and not self._all:
            return
        has = native.available_isas()
        ran = [f"{name} ({self._passed[name]})" for name in has if self._passed[name]]
        terminalreporter.write_line(
            f"ISA paths tested, with how many tests: {', '.join(ran) or 'none'} "
            f"(of those this CPU has: {', '.join(has)})"
        )
        if missing := self._missing():
            terminalreporter.write_line(f"error: not tested: {', '.join(missing)}", red=True)

    def _missing(self) -> list[str]:
        if not self._all:
            return []
        return [name for name in native.available_isas() if not self._passed[name]]
