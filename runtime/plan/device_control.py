"""Conditional execution on devices: control flow decided inside recorded work."""

from __future__ import annotations

from typing import Protocol

from ..base.record import record
from .backend import Device, Run, Step, View


@record
class Rounds:
    """How often a body runs.

    Attributes:
        counter: int64 [2] on the device: the iteration number, counted from 0, and whether there is
            a next one.
        count: maximum number of iterations, an int64 on the device or known; None for no limit.
        first: the condition (bool, one element) before the first iteration; None if true.
        going: the condition after each iteration; None if true.
        is_read: whether the body reads the counter.
        is_unrolled: whether the body is recorded `count` times, as only a known count ends the
            loop.
    """

    counter: View
    count: View | int | None
    first: View | None
    going: View | None
    is_read: bool = True
    is_unrolled: bool = False


class Decisions(Protocol):
    """Conditional execution on a device that knows conditions before the host does.

    The returned functions may be part of a recording, where the device decides during replay, or be
    called outside one; then the host waits for the condition.
    """

    def refusal(self, step: Step) -> str:
        """Return why a step cannot be part of a body; empty if it can."""
        ...

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        """Return a function that runs `then` if `cond` (bool, one element) holds, else `other`."""
        ...

    def repeat(self, body: Run, rounds: Rounds) -> Run:
        """Return a function that runs `body` repeatedly."""
        ...

    def take(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies an iteration's element of `src` to `dst`.

        Args:
            dst: has the shape of `src` without the axis.
            src: its axis has one element per iteration.
            axis: counted from the front.
            counter: see `Rounds`.
            backward: whether the first iteration takes the last element.
        """
        ...

    def put(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies `src` to an iteration's element of `dst`."""
        ...


def decisions_of(device: Device) -> Decisions | None:
    """Return a device's conditional execution; None if it leaves control flow to the host."""
    return getattr(device, "decisions", None)
