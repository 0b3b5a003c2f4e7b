"""Run the command line: `python -m tercet`, and the program `tercet`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command; Ctrl-C while its modules are imported ends as it does later."""
    try:
        from .tools.common.interrupts import INTERRUPTS

        INTERRUPTS.listen()
        from .tools.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        # SystemExit would not do: see `tools.cli._leave_if_interrupted`. Nothing is open yet.
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
