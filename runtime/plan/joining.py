"""The interface between plans and backends that run several small steps as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..options import Options
from .backend import Step


@runtime_checkable
class Deferring(Protocol):
    """A step that is prepared once it is known that it runs by itself; see `Joining`."""

    def compile(self) -> None:
        """Begin to prepare it; `bind` waits for the end. A second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One of the steps that become one.

    Attributes:
        step: the step.
        inputs: the place of each of its inputs among those of the whole, behind which its outputs
            are.
        outputs: the same of its outputs.
        after: the numbers of the steps before it that it has to wait for.
    """

    step: Step
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...]


@runtime_checkable
class Joining(Protocol):
    """A backend that can run several of its steps as one, in less time than by themselves."""

    def joins(self, steps: Sequence[Step], options: Options) -> bool:
        """Whether steps that follow one another can be one.

        With `Options.check_each` none should: a fault is one of a single node then.
        """
        ...

    def gains(self, steps: Sequence[Step]) -> bool:
        """Whether such steps, possibly a single one, take less time as one."""
        ...

    def joined(self, parts: Sequence[Part]) -> Step:
        """Return the step that does what these do, given in order, and stores all that they do."""
        ...
