"""Which cases a command of a fuzzer tries: options that all of them have."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

from ....runtime.passes.driver import VERIFY


def add_numbering(parser: ArgumentParser, cases: str, count: int, only: str) -> None:
    """Add the options that `numbers_of` and `until` read.

    Args:
        parser: of the command.
        cases: what is numbered, in the plural, which is the name of the option for how many.
        count: how many by default.
        only: what the option does that names a single case.
    """
    parser.add_argument(
        f"--{cases}", type=int, default=count, help="how many", dest="count", metavar=cases.upper()
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="number of the campaign")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--only", type=int, help=only)


def numbers_of(given: Namespace) -> Sequence[int]:
    """Return the numbers of all cases, or of the only one."""
    only = given.only
    return range(given.first, given.first + given.count) if only is None else (only,)


def until(seconds: float, numbers: Sequence[int]) -> Iterator[int]:
    """Yield numbers until so many seconds have passed."""
    end = monotonic() + seconds
    for number in numbers:
        if monotonic() > end:
            return
        yield number


def verify_passes() -> None:
    """Have graphs verified after each pass, in this process and those that it starts."""
    os.environ.setdefault(VERIFY, "1")


def shown(command: str, arguments: Sequence[str] | None) -> str:
    """Return what repeats a command, without the folders of this machine, for its page."""
    given = sys.argv[1:] if arguments is None else arguments
    words = ("FOLDER" if Path(word).is_absolute() else word for word in given)
    return f"python -m tercet.tools.workshop.fuzz.{command} {' '.join(words)}"
