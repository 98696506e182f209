"""How every command ends: with one clear line and an exit status, never with a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from kvreuse.cli.terminal import one_line, stderr
from kvreuse.errors import KVReuseError

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE


class GuardedGroup(TyperGroup):
    """A group of commands that turns what a user can cause into one line and an exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse, run and, when standalone, exit: 0, 2 for a user's error, 130 for Ctrl-C."""
        run = functools.partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **extra
        )
        status = _status_of(run)
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; its own errors end here, before the parser's handling."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _silence_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            if sys.stdout.isatty():
                print()  # the text may have stopped in the middle of a line
            raise typer.Exit(INTERRUPTED) from None
        except (KVReuseError, OSError) as error:
            show_error(_words(error))
            raise typer.Exit(USER_ERROR) from None


def show_error(message: str) -> None:
    """Write ``error: message`` to standard error, on one line whatever the message holds."""
    words = Text.assemble(("error:", "bold red"), f" {one_line(message)}")
    stderr().print(words, soft_wrap=True)


def _status_of(run: Callable[[], Any]) -> int:
    try:
        result = run()
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # The parser's errors have no public class that all versions of typer share.
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        if message := words().rstrip("."):  # empty: no arguments, and the help was shown
            show_error(f"{message}{_where_help_is(error)}")
        return USER_ERROR
    return result if isinstance(result, int) else 0


def _where_help_is(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f" (try '{context.command_path} --help')" if context is not None else ""


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        return error.strerror if name is None else f"{os.fsdecode(name)}: {error.strerror}"
    return str(error) or type(error).__name__


def _silence_stdout() -> None:
    """Point standard output nowhere, so that the flush at exit has nothing to complain about."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
