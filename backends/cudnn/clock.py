"""How long something takes on the GPU: by events around a recording of several calls."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from ..cuda.device import CudaDevice, CudaStream

#: Microseconds that one recording should take, calls that it has at most, and its replays.
RECORDED, MOST_CALLS, REPLAYS = 300.0, 20, 5
#: What takes so many times the least, and so many microseconds of launching, is not recorded.
FAR, LAUNCHING = 2.0, 30.0


def microseconds(
    device: CudaDevice, run: Callable[[CudaStream], None], stream: CudaStream, least: float
) -> float:
    """Return the median of what a call takes; roughly where that is far from `least`.

    Args:
        device: the GPU.
        run: what is called; the first time it may load and compile.
        stream: where.
        least: microseconds of the best so far.
    """
    run(stream)
    once = min(1e6 * device.time(run, stream) for _ in range(2))
    if once > FAR * least + LAUNCHING:
        return once
    calls = max(1, min(MOST_CALLS, round(RECORDED / max(once, 1.0))))

    def repeat(stream: CudaStream) -> None:
        for _ in range(calls):
            run(stream)

    recorded = device.record(repeat)
    device.time(recorded, stream)
    return 1e6 * median(device.time(recorded, stream) for _ in range(REPLAYS)) / calls
