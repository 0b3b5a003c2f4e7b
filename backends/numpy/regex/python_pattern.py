"""Patterns for which Python's `re` finds what RE2 does, as fast: see `python_pattern`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ....runtime.base.record import record
from .char_classes import Ranges
from .parser import Assertion, Characters, RepeatNode, Sequence, Tree

#: Assertions in Python's syntax. Where `\B` holds in empty texts depends on Python's version.
_ASSERTIONS = {"A": r"\A", "z": r"\Z", "^": "(?m:^)", "$": "(?m:$)", "b": r"\b"}

#: Maximum runs and assertions, each of which is compared with those behind it.
MAX_PARTS = 20


@record
class _Run:
    """Between `minimum` and `maximum` characters of some ranges; None for any number."""

    ranges: Ranges
    minimum: int
    maximum: int | None

    @property
    def is_fixed(self) -> bool:
        """Whether it always has as many characters."""
        return self.minimum == self.maximum

    @property
    def text(self) -> str:
        """It in Python's syntax."""
        inside = "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in self.ranges)
        last = "" if self.maximum is None else self.maximum
        return f"[{inside}]{{{self.minimum},{last}}}"


def python_pattern(tree: Tree) -> re.Pattern[str] | None:
    """Return a pattern with the same matches, the longest ones; None if there may be none.

    It is a sequence of runs of characters where the next character always tells whether a run goes
    on. So a text has a single way to match, of which `re` finds the longest first, and gives up
    after as many steps as it has taken characters.
    """
    parts = list[_Run | str]()
    for part in _flat(tree):
        if part is None:
            return None
        before = parts[-1] if parts else ""
        if isinstance(part, _Run) and isinstance(before, _Run) and part.ranges == before.ranges:
            parts[-1] = _Run(part.ranges, before.minimum + part.minimum, _total(before, part))
        else:
            parts.append(part)
        if len(parts) > MAX_PARTS:
            return None
    runs = [part for part in parts if isinstance(part, _Run)]
    if not all(_is_clear(run, runs[i:]) for i, run in enumerate(runs, 1)):
        return None
    return re.compile("".join(p.text if isinstance(p, _Run) else p for p in parts), re.ASCII)


def _flat(tree: Tree) -> Iterator[_Run | str | None]:
    """Yield runs and assertions in order, and None for everything else."""
    match tree:
        case Sequence(parts):
            for part in parts:
                yield from _flat(part)
        case Characters(ranges) if ranges:
            yield _Run(ranges, 1, 1)
        case Assertion(kind):
            yield _ASSERTIONS.get(kind)
        case RepeatNode(part, minimum, maximum):
            match list(_flat(part)):
                case [_Run(ranges, 1, 1)]:
                    yield _Run(ranges, minimum, maximum)
                case _:
                    yield None
        case _:
            yield None


def _total(first: _Run, second: _Run) -> int | None:
    if first.maximum is None or second.maximum is None:
        return None
    return first.maximum + second.maximum


def _is_clear(run: _Run, later: list[_Run]) -> bool:
    """Whether no character that may follow a run of variable length could also continue it."""
    if run.is_fixed:
        return True
    for other in later:
        ranges = sorted((*run.ranges, *other.ranges))
        if any(start <= end for (_, end), (start, _) in pairwise(ranges)):
            return False
        if other.minimum:
            break
    return True
