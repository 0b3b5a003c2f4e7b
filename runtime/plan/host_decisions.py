"""Control flow inside plans of the host: loops whose iterations only replay bound steps."""

from __future__ import annotations

import numpy as np

from ..base.guard import check_time
from ..ir.types import Array
from .backend import Run, Step, Stream, View
from .bind import unguarded
from .device_control import Rounds
from .host import array, logical

#: The number of iterations of a loop that only its condition ends.
_UNBOUNDED = np.iinfo(np.int64).max


class HostDecisions:
    """Implements `device_control.Decisions` for the host."""

    def refusal(self, step: Step) -> str:
        """Return an empty string: every step can run again."""
        return ""

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        """Return a function that runs one of two bodies; see `Decisions`."""
        condition = array(cond)

        def run(stream: Stream) -> None:
            (then if condition.all() else other)(stream)

        return run

    def repeat(self, body: Run, rounds: Rounds) -> Run:
        """Return a function that runs a body repeatedly; see `Decisions`."""
        counter = array(rounds.counter)
        first, going = (None if v is None else array(v) for v in (rounds.first, rounds.going))
        count = _UNBOUNDED if rounds.count is None else rounds.count
        limit = array(count) if isinstance(count, View) else np.array(count)
        guard, inside = unguarded(body)

        def run(stream: Stream) -> None:
            most, number = int(limit.item()), 0
            goes_on = first is None or bool(first.item())
            with guard():
                while goes_on and number < most:
                    check_time()
                    counter[0] = number
                    inside(stream)
                    number += 1
                    goes_on = going is None or bool(going.item())

        return run

    def take(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies the element of an iteration; see `Decisions`."""
        target, number = logical(dst), array(counter)
        elements = _elements(logical(src), axis, backward=backward)

        def run(stream: Stream) -> None:
            np.copyto(target, elements[int(number[0])])

        return run

    def put(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies to the element of an iteration; see `Decisions`."""
        source, number = logical(src), array(counter)
        elements = _elements(logical(dst), axis, backward=backward)

        def run(stream: Stream) -> None:
            elements[int(number[0])] = source

        return run


def _elements(whole: Array, axis: int, *, backward: bool) -> Array:
    """Return a view of the elements in the order of iterations, which is that of its first axis."""
    along: Array = np.moveaxis(whole, axis, 0)
    return along[::-1] if backward else along
