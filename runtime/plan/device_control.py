"""Devices that decide by themselves, in the middle of recorded work, what of it comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .backend import Device, Run, Step, View


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often a body runs.

    Attributes:
        counter: int64[2], which the device keeps: the number of the round, counted from 0, and
            whether there is another one.
        count: rounds at most, an int64 of the device or known; None for no limit.
        first: the condition (bool, one element) before the first round; None where it holds.
        going: the condition after each round; None where it holds.
        is_read: whether the body reads the counter.
        is_unrolled: whether it is to be recorded `count` times, which is known then and nothing
            else ends it: so there is nothing to decide on.
    """

    counter: View
    count: View | int | None
    first: View | None
    going: View | None
    is_read: bool = True
    is_unrolled: bool = False


class Decisions(Protocol):
    """What control flow becomes on a device that knows the condition before the host does.

    What is returned can be part of a recording, where the device decides while it replays it, and
    may be called outside of one: then the host waits for what the condition is.
    """

    def refusal(self, step: Step) -> str:
        """Return why a step cannot be part of a body; empty if it can."""
        ...

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        """Return a function: runs `then` if `cond` (bool, one element) is true, else `other`."""
        ...

    def repeat(self, body: Run, rounds: Rounds) -> Run:
        """Return a function that does `body` repeatedly."""
        ...

    def take(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies the element of this round along an axis of `src` to `dst`.

        Args:
            dst: of the shape of `src` without the axis.
            src: as long along the axis as there are rounds.
            axis: counted from the front.
            counter: see `Rounds`.
            backward: whether the first round gets the last element.
        """
        ...

    def put(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return what copies `src` to the element of this round along an axis of `dst`."""
        ...


def decisions_of(device: Device) -> Decisions | None:
    """Return how a device decides on control flow; None for one that leaves it to the host."""
    return getattr(device, "decisions", None)
