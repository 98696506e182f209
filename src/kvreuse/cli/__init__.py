"""The command line: one module a command. A leaf: nothing imports it."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit; the console script.

    Its modules are imported here, so that Ctrl-C ends also that in silence.
    """
    try:
        from kvreuse.cli.app import app  # noqa: PLC0415

        app(prog_name="kvreuse")
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as a shell reports it
