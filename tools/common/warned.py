"""Warnings on the command line: printed once each, and included in --json."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from ...runtime.errors import TercetWarning
from ...runtime.text import message


@dataclass(slots=True)
class Heard:
    """The warnings of a command, in order and without duplicates."""

    warnings: list[TercetWarning] = field(default_factory=list[TercetWarning])

    def to_list(self) -> list[dict[str, str]]:
        """Return kind and text of each, for JSON."""
        return [{"type": type(each).__name__, "message": str(each)} for each in self.warnings]

    def add(self, warning: TercetWarning) -> None:
        """Record a warning, and print it if it is new."""
        known = {(type(each), str(each)) for each in self.warnings}
        if (type(warning), str(warning)) not in known:
            self.warnings.append(warning)
            print(f"warning: {message(str(warning))}", file=sys.stderr)


#: Warnings of the running command.
HEARD = Heard()


@contextmanager
def listening() -> Iterator[Heard]:
    """Print every warning as one line within the block; tercet's own are also kept for JSON."""
    HEARD.warnings.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always", TercetWarning)

        def hear(
            what: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> Any:
            if isinstance(what, TercetWarning):
                HEARD.add(what)
            else:
                said = message(" ".join(str(what).split()))
                print(f"warning: {said} ({category.__name__})", file=sys.stderr)

        warnings.showwarning = hear
        yield HEARD
