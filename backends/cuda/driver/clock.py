"""How long something takes on the GPU: by events around a recording of several calls."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import CudaStream, DriverDevice

#: Microseconds that one recording should take, calls that it has at most, and its replays.
RECORDED, MAX_CALLS, REPLAYS = 300.0, 50, 5
#: What takes that many times the least, and that many microseconds of launching, is far from it.
FAR, LAUNCHING = 3.0, 50.0


def microseconds(
    device: DriverDevice,
    run: Callable[[CudaStream], None],
    stream: CudaStream,
    minimum: float = inf,
) -> float:
    """Return the median of what one of many calls in a row takes.

    Args:
        device: that does it.
        run: gives the stream one call's work; the first time it may load and compile.
        stream: of the device.
        minimum: microseconds of the best so far; what is far from it is not measured well.
    """

    def recorded(calls: int, replays: int) -> float:
        def repeat(stream: CudaStream) -> None:
            for _ in range(calls):
                run(stream)

        graph = device.record(repeat)
        device.time(graph, stream)
        return 1e6 * median(device.time(graph, stream) for _ in range(replays)) / calls

    run(stream)
    once = min(1e6 * device.time(run, stream) for _ in range(2))
    if once > FAR * minimum + LAUNCHING:
        # A host that is busy, as with compiling, launches late; a recording has no such gaps.
        once = recorded(1, 1)
        if once > FAR * minimum + LAUNCHING:
            return once
    return recorded(max(1, min(MAX_CALLS, round(RECORDED / max(once, 1.0)))), REPLAYS)
