"""How long the device works on one piece of a plan, by a pair of its events."""

from __future__ import annotations

from collections.abc import Callable

from cuda.bindings import driver

from .device import CudaStream, DriverDevice
from .status import check

_EXTERNAL = int(driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)


class Stopwatch:
    """Two events around some work.

    In a recorded graph they are nodes of the graph, so that a replay times the work alone and not
    the launch of it, which takes longer than a small kernel.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        flags = int(driver.CUevent_flags.CU_EVENT_DEFAULT)
        self._begin = check("cuEventCreate", driver.cuEventCreate(flags))
        self._end = check("cuEventCreate", driver.cuEventCreate(flags))

    def around(
        self, run: Callable[[CudaStream], None], *, recorded: bool
    ) -> Callable[[CudaStream], None]:
        """Return a function that does the same work between the two events.

        Args:
            run: gives the work to a stream.
            recorded: whether to record it as a graph; it must be capturable then.
        """
        flags = _EXTERNAL if recorded else 0

        def timed(stream: CudaStream) -> None:
            self._mark(self._begin, stream, flags)
            run(stream)
            self._mark(self._end, stream, flags)

        return self._device.record(timed) if recorded else timed

    def _mark(self, event: object, stream: CudaStream, flags: int) -> None:
        answer = driver.cuEventRecordWithFlags(event, stream.handle, flags)
        check("cuEventRecordWithFlags", answer)

    def seconds(self) -> float:
        """Return the time between the events of the last run, which must be complete."""
        answer = driver.cuEventElapsedTime(self._begin, self._end)
        return check("cuEventElapsedTime", answer) / 1e3

    def close(self) -> None:
        """Give the events back; the work cannot be timed afterwards."""
        for event in (self._begin, self._end):
            check("cuEventDestroy", driver.cuEventDestroy(event))
