"""The command line: one module a command. A leaf: nothing imports it."""

from kvreuse.cli.app import app, main

__all__ = ["app", "main"]
