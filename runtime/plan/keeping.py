"""What backends and steps tell of themselves so that plans can be kept on disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Keeping(Protocol):
    """A backend whose steps can be kept."""

    @property
    def kept_as(self) -> str | None:
        """All that its steps depend on besides graph and options; None if they cannot be kept."""
        ...

    def provide(self) -> None:
        """Import what makes claims, which plans that were kept do not need."""
        ...


@runtime_checkable
class Portable(Protocol):
    """A step that can be pickled: with a `Device` and `Weights`, which are given to its copy."""

    @property
    def portable(self) -> bool:
        """Whether it can."""
        ...


def marks_of(backends: Iterable[object]) -> tuple[str, ...] | None:
    """Return what the steps of backends depend on; None if those of one cannot be kept."""
    found = [each.kept_as if isinstance(each, Keeping) else None for each in backends]
    marks = tuple(mark for mark in found if mark is not None)
    return marks if len(marks) == len(found) else None
