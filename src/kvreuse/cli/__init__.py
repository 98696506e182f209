"""The command line: ``run``, ``pull``, ``models`` and ``info``. A leaf: nothing imports it."""

from kvreuse.cli.app import app, main

__all__ = ["app", "main"]
