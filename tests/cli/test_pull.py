"""``kvreuse pull`` of a model that is there already; fetching is tested with the catalogue."""

from __future__ import annotations

from pathlib import Path

from .conftest import invoke


def test_the_path_is_all_of_standard_output(model_path: Path) -> None:
    result = invoke("pull", "smollm2-135m")
    assert result.exit_code == 0
    assert result.stdout == f"{model_path}\n"
    assert "Apache-2.0" in result.stderr
    assert "SHA-256 verified" in result.stderr


def test_help_teaches_by_example() -> None:
    for command in ("run", "pull", "info"):
        shown = invoke(command, "--help").stdout
        assert f"kvreuse {command} smollm2-135m" in shown
