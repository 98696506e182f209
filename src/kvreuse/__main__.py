"""``python -m kvreuse``: the command line without the console script."""

from kvreuse.cli import main

main()
