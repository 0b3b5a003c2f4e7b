"""Kernel timing: CUDA events around a recording of several calls."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import DriverDevice
    from .streams import CudaStream

#: Target duration of a recording in microseconds, maximum number of calls, and replays.
RECORDED, MAX_CALLS, REPLAYS = 300.0, 50, 5
#: Factor above the best time, and launch overhead in microseconds, beyond which to stop early.
FAR, LAUNCHING = 3.0, 50.0


def microseconds(
    device: DriverDevice,
    run: Callable[[CudaStream], None],
    stream: CudaStream,
    minimum: float = inf,
) -> float:
    """Return the median time of one of many back-to-back calls.

    Args:
        device: the GPU.
        run: enqueues one call; the first time it may load and compile.
        stream: a stream of the device.
        minimum: best time so far in microseconds; candidates far from it are measured less
            precisely.
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
        # A busy host (compiling, say) launches late; a recording has no such gaps.
        once = recorded(1, 1)
        if once > FAR * minimum + LAUNCHING:
            return once
    return recorded(max(1, min(MAX_CALLS, round(RECORDED / max(once, 1.0)))), REPLAYS)
