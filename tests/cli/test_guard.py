"""Every way a command can end, on a small application of its own."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from kvreuse.cli.guard import GuardedGroup
from kvreuse.errors import ConfigError, ModelFileError, RequestError

app = typer.Typer(cls=GuardedGroup, name="app", add_completion=False, no_args_is_help=True)

ENDINGS: dict[str, BaseException] = {
    "model": ModelFileError("model.gguf: is a folder\nreally"),
    "config": ConfigError("threads must be at least 1, got \x1b[0m0"),
    "request": RequestError("[bold]brackets[/] are text"),
    "path": FileNotFoundError(2, "No such file or directory", "notes.txt"),
    "disk": OSError(28, "No space left on device"),
    "interrupt": KeyboardInterrupt(),
}


@app.command()
def end(how: str, count: int = 0) -> None:
    if how in ENDINGS:
        raise ENDINGS[how]
    if how == "bug":
        raise ZeroDivisionError("a bug")
    typer.echo(f"{how} {count}")


@app.command()
def other() -> None:
    typer.echo("other")


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("model", "error: model.gguf: is a folder really\n"),
        ("config", "error: threads must be at least 1, got [0m0\n"),
        ("request", "error: [bold]brackets[/] are text\n"),
        ("path", "error: notes.txt: No such file or directory\n"),
        ("disk", "error: No space left on device\n"),
    ],
)
def test_a_users_error_is_one_line_and_status_2(how: str, line: str) -> None:
    result = CliRunner().invoke(app, ["end", how])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["end"], "Missing argument"),
        (["end", "x", "--count", "many"], "--count"),
        (["end", "x", "--nonsense"], "--nonsense"),
        (["end", "x", "y"], "unexpected extra argument"),
        (["nonsense"], "No such command"),
    ],
)
def test_a_usage_error_is_one_line_that_names_the_help(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert "--help')" in line


def test_no_arguments_show_the_help_and_no_error() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "Commands" in result.output
    assert "error" not in result.output


def test_an_interrupt_is_quiet() -> None:
    result = CliRunner().invoke(app, ["end", "interrupt"])
    assert (result.exit_code, result.output) == (130, "")


def test_success_is_status_0() -> None:
    result = CliRunner().invoke(app, ["end", "well", "--count", "3"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "well 3\n", "")


def test_a_bug_is_not_hidden() -> None:
    result = CliRunner().invoke(app, ["end", "bug"])
    assert isinstance(result.exception, ZeroDivisionError)
