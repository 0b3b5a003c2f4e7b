"""Run the command line: `python -m tercet`."""

from .tools.cli import main

main()
